use super::*;
use crate::isolation::policy::tests::{address, node, policy, rules};
use kat_types::machine::isolation::EVERY_NAMESPACE;

fn content(instances: &[(&str, &str, &str)]) -> TableContent {
    TableContent::of(&policy(&rules(instances)))
}

const TWO: [(&str, &str, &str); 2] = [("data", "db", "10.90.4.10"), ("shop", "web", "10.90.6.10")];

#[test]
fn each_namespace_has_a_set_and_a_chain_and_each_address_a_guard() {
    let mut rules = rules(&TWO);
    let data = rules.namespaces.get_mut("data").unwrap();
    data.workloads.get_mut("db").unwrap().allow = ["shop", "absent"].map(str::to_owned).into();
    let content = changes(&TableContent::default(), &TableContent::of(&policy(&rules)));
    let lines: Vec<&str> = content.lines().collect();
    assert_eq!(
        lines,
        [
            "add set inet kat-isolation in-data { type ipv4_addr; }",
            "add set inet kat-isolation in-shop { type ipv4_addr; }",
            "add chain inet kat-isolation to-data/db",
            "add rule inet kat-isolation to-data/db ip saddr @in-data accept",
            "add rule inet kat-isolation to-data/db ip saddr @in-shop goto allowed",
            "add rule inet kat-isolation to-data/db goto others",
            "add chain inet kat-isolation to-shop",
            "add rule inet kat-isolation to-shop ip saddr @in-shop accept",
            "add rule inet kat-isolation to-shop goto others",
            "add element inet kat-isolation to { 10.90.4.10 : goto to-data/db, 10.90.6.10 : goto to-shop }",
            "add element inet kat-isolation known { 10.90.4.10, 10.90.6.10 }",
            "add element inet kat-isolation in-data { 10.90.4.10 }",
            "add element inet kat-isolation in-shop { 10.90.6.10 }",
        ]
    );
}

#[test]
fn a_new_instance_is_three_elements_and_nothing_changes_without_a_change() {
    let before = content(&TWO);
    let more = [TWO[0], TWO[1], ("shop", "web", "10.90.6.11")];
    let next = content(&more);
    let transaction = changes(&before, &next);
    let lines: Vec<&str> = transaction.lines().collect();
    assert_eq!(
        lines,
        [
            "add element inet kat-isolation to { 10.90.6.11 : goto to-shop }",
            "add element inet kat-isolation known { 10.90.6.11 }",
            "add element inet kat-isolation in-shop { 10.90.6.11 }",
        ]
    );
    assert!(!is_tighter(&before, &next));
    assert!(is_tighter(&next, &before));
    assert_eq!(changes(&next, &next), "");
    assert!(!is_tighter(&next, &next));
}

#[test]
fn the_last_instance_of_a_namespace_takes_its_set_and_chain_with_it() {
    let transaction = changes(&content(&TWO), &content(&TWO[..1]));
    let lines: Vec<&str> = transaction.lines().collect();
    assert_eq!(
        lines,
        [
            "delete element inet kat-isolation to { 10.90.6.10 }",
            "delete element inet kat-isolation known { 10.90.6.10 }",
            "flush chain inet kat-isolation to-shop",
            "delete chain inet kat-isolation to-shop",
            "delete set inet kat-isolation in-shop",
        ]
    );
}

#[test]
fn an_address_that_moves_to_another_namespace_tightens() {
    let moved = [TWO[0], ("data", "new", "10.90.6.10")];
    let (before, next) = (content(&TWO), content(&moved));
    assert!(is_tighter(&before, &next));
    let transaction = changes(&before, &next);
    for line in [
        "delete element inet kat-isolation to { 10.90.6.10 }",
        "add element inet kat-isolation to { 10.90.6.10 : goto to-data }",
        "add element inet kat-isolation in-data { 10.90.6.10 }",
    ] {
        assert!(
            transaction.lines().any(|found| found == line),
            "{transaction}"
        );
    }
    assert!(!transaction.contains("known"), "{transaction}");
}

#[test]
fn what_is_no_more_allowed_tightens_and_what_is_now_allowed_does_not() {
    let closed = rules(&TWO);
    let mut open = closed.clone();
    let data = open.namespaces.get_mut("data").unwrap();
    data.allow.insert("shop".into());
    let mut shared = closed.clone();
    let data = shared.namespaces.get_mut("data").unwrap();
    data.allow.insert(EVERY_NAMESPACE.into());
    let [closed, open, shared] =
        [closed, open, shared].map(|rules| TableContent::of(&policy(&rules)));
    assert!(is_tighter(&open, &closed) && is_tighter(&shared, &closed));
    assert!(!is_tighter(&closed, &open) && !is_tighter(&closed, &shared));
}

#[test]
fn in_audit_no_rule_refuses() {
    let refuses = |mode| {
        let frame = frame(TEMPLATE, &node(), mode).unwrap();
        let rules = frame.lines().filter(|line| !line.trim().starts_with('#'));
        let rules: Vec<&str> = rules.collect();
        let jumps = |line: &&&str| line.contains("goto reject-now") || line.contains("drop");
        rules.iter().filter(jumps).count()
    };
    assert_eq!(refuses(IsolationMode::Audit), 0);
    assert_eq!(refuses(IsolationMode::Namespaces), 5);
}

fn nested(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    netfilter::push(&mut bytes, kind | 0x8000, value);
    bytes
}

/// An answer of the kernel with one element.
fn answer() -> Vec<u8> {
    let key = [10, 90, 4, 10, 10, 90, 6, 10, 6, 0, 0, 0, 0x15, 0x38, 0, 0];
    let mut value = Vec::new();
    netfilter::push(&mut value, DATA_VALUE, &key);
    let mut element = nested(SET_ELEM_KEY, &value);
    netfilter::push(&mut element, SET_ELEM_EXPIRATION, &57_000_u64.to_be_bytes());
    let mut counter = Vec::new();
    netfilter::push(&mut counter, 1, &120_u64.to_be_bytes());
    netfilter::push(&mut counter, COUNTER_PACKETS, &2_u64.to_be_bytes());
    let mut expression = Vec::new();
    netfilter::push(&mut expression, 1, b"counter\0");
    expression.extend(nested(EXPR_DATA, &counter));
    element.extend(nested(SET_ELEM_EXPR, &expression));
    let mut body = vec![INET, 0, 0, 0];
    body.extend(nested(SET_ELEM_LIST_ELEMENTS, &nested(1, &element)));
    body
}

#[test]
fn an_element_of_the_kernels_is_a_refused_flow() {
    let flow = RefusedFlow {
        from: address("10.90.4.10"),
        to: address("10.90.6.10"),
        protocol: 6,
        port: 5432,
    };
    let packets = RefusedPackets {
        packets: 2,
        ago: 3000,
    };
    assert_eq!(elements(&answer()), [(flow, packets)]);
}

#[test]
fn a_truncated_answer_about_refused_flows_is_read_as_far_as_it_goes() {
    let answer = answer();
    for length in 0..answer.len() {
        assert_eq!(elements(&answer[..length]), [], "{length} bytes");
    }
}
