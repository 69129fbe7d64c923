//! The replacement of KAT's own authority for ingress.

use super::*;
use super::{
    routes::{issue, route},
    secrets::machines,
};
use jiff::SignedDuration;
use kat_pki::ingress::{brought_certificate, certificate_hash};
use kat_types::{
    reason::EventReason,
    resource::ClusterConfiguration,
    store::{
        authorities::RotationReason,
        ingress::{IngressAuthorityRecord, IngressReplacement, TLS_KEY},
    },
};

const DAY: SignedDuration = SignedDuration::from_hours(24);

fn stored(world: &mut World) -> IngressAuthorityRecord {
    let snapshot = world.snapshot();
    let stored = snapshot.ingress_authority.as_ref().unwrap();
    IngressAuthorityRecord::clone(&stored.value)
}

/// As the API writes a request.
fn request(world: &mut World, grace_days: u32) {
    let mut record = stored(world);
    record.due = Some(IngressReplacement {
        reason: RotationReason::Requested,
        since: world.now,
        grace_seconds: grace_days * 24 * 3600,
    });
    world.write(keys::INGRESS_AUTHORITY.to_owned(), &record);
}

fn set_domains(world: &mut World, domains: &[&str]) {
    let mut cluster = ClusterConfiguration::default();
    let domains = domains.iter().map(|domain| (*domain).to_owned());
    cluster.spec.ingress.internal_domains = Some(domains.collect());
    world.write(keys::CLUSTER.to_owned(), &cluster);
}

fn hosts(world: &mut World, hosts: &[&str]) {
    let routes: Vec<_> = hosts
        .iter()
        .map(|host| json!({"host": host, "servicePort": 80, "tls": true}))
        .collect();
    route(world, NAMESPACE, "web", json!(routes));
}

/// SHA-256 of the authority's certificate that issued the certificate of the host.
fn issuer(world: &mut World, host: &str) -> String {
    let snapshot = world.snapshot();
    snapshot.ingress_certificates[host].value.authority.clone()
}

fn hash(certificate: &str) -> String {
    certificate_hash(certificate).unwrap()
}

fn events(world: &mut World, reason: EventReason) -> usize {
    world.events(reason.word()).len()
}

/// The sealed key belongs to the certificate.
fn opens(world: &mut World, certificate: &str, key: &SecretRecord) {
    let snapshot = world.snapshot();
    let place = SecretKey::new("/ingress", "authority");
    let opened = snapshot.sealing.open(&snapshot, &place, key).unwrap();
    brought_certificate(certificate.as_bytes(), &opened.0[TLS_KEY]).unwrap();
}

#[test]
fn a_replacement_shows_both_authorities_for_its_time_and_then_issues_everything_anew() {
    let mut world = machines(1);
    hosts(&mut world, &["a.lan", "b.lan"]);
    issue(&mut world);
    let first = stored(&mut world);
    assert!(!first.is_being_replaced());
    let old = hash(&first.certificate);

    // Trust: both are shown, and the present one issues and renews.
    request(&mut world, 70);
    assert_eq!(issue(&mut world), 1);
    let trust = stored(&mut world);
    let next = trust.next.clone().unwrap();
    assert_eq!((&trust.due, &trust.previous), (&None, &None));
    assert_eq!(trust.certificate, first.certificate);
    assert_eq!(next.replacement.reason, RotationReason::Requested);
    assert_ne!(next.certificate, first.certificate);
    opens(&mut world, &next.certificate, &next.key);
    opens(&mut world, &trust.certificate, &trust.key);
    world.now += DAY * 61;
    assert_eq!(issue(&mut world), 1, "the certificates are renewed");
    assert_eq!(issuer(&mut world, "a.lan"), old);
    world.now = next.replacement.grace_end() - SignedDuration::from_secs(1);
    assert_eq!(issue(&mut world), 0);

    // Issue, and the end.
    world.now = next.replacement.grace_end();
    assert_eq!(issue(&mut world), 3, "it takes over, issues, and forgets");
    let end = stored(&mut world);
    assert!(!end.is_being_replaced());
    assert_eq!(
        (&end.certificate, &end.key, end.since),
        (&next.certificate, &next.key, world.now)
    );
    for host in ["a.lan", "b.lan"] {
        assert_eq!(issuer(&mut world, host), hash(&next.certificate));
    }
}

#[test]
fn a_request_without_a_time_left_replaces_the_authority_at_once_and_needs_no_route() {
    let mut world = machines(1);
    hosts(&mut world, &["a.lan"]);
    issue(&mut world);
    hosts(&mut world, &[]);
    issue(&mut world);
    let first = stored(&mut world);
    assert!(!uses_own_authority(&world.snapshot()));
    request(&mut world, 0);
    assert!(uses_own_authority(&world.snapshot()));
    assert_eq!(issue(&mut world), 3);
    let end = stored(&mut world);
    assert_ne!(end.certificate, first.certificate);
    assert!(!end.is_being_replaced());
}

#[test]
fn other_domains_are_served_at_once_by_the_new_authority_and_the_others_by_the_present_one() {
    let mut world = machines(1);
    set_domains(&mut world, &["lan"]);
    hosts(&mut world, &["a.lan"]);
    issue(&mut world);
    let first = stored(&mut world);

    set_domains(&mut world, &["lan", "corp"]);
    hosts(&mut world, &["a.lan", "a.corp"]);
    issue(&mut world);
    let trust = stored(&mut world);
    let next = trust.next.clone().unwrap();
    assert_eq!(next.replacement.reason, RotationReason::DomainsChanged);
    assert_eq!(
        next.replacement.grace_end(),
        world.now + DAY * 30,
        "people have a month"
    );
    assert_eq!(issuer(&mut world, "a.lan"), hash(&first.certificate));
    assert_eq!(issuer(&mut world, "a.corp"), hash(&next.certificate));
    assert!(next.domains.contains("corp") && !trust.domains.contains("corp"));

    // Others once more: what nobody has come to trust is made anew.
    set_domains(&mut world, &["lan", "corp", "shop"]);
    issue(&mut world);
    let anew = stored(&mut world).next.unwrap();
    assert_ne!(anew.certificate, next.certificate);
    assert_eq!(issuer(&mut world, "a.lan"), hash(&first.certificate));
    assert_eq!(issuer(&mut world, "a.corp"), hash(&anew.certificate));

    // Back to those of the present one, before anything has changed for its clients.
    set_domains(&mut world, &["lan"]);
    hosts(&mut world, &["a.lan"]);
    issue(&mut world);
    assert_eq!(stored(&mut world), first);
    assert_eq!(issuer(&mut world, "a.lan"), hash(&first.certificate));
}

#[test]
fn a_requested_replacement_survives_other_domains_and_begins_its_time_anew() {
    let mut world = machines(1);
    set_domains(&mut world, &["lan"]);
    hosts(&mut world, &["a.lan"]);
    issue(&mut world);
    request(&mut world, 10);
    issue(&mut world);
    world.now += DAY * 9;
    for domains in [&["lan", "corp"][..], &["lan"]] {
        set_domains(&mut world, domains);
        issue(&mut world);
        let next = stored(&mut world).next.unwrap();
        assert_eq!(next.replacement.reason, RotationReason::Requested);
        assert_eq!(next.replacement.grace_end(), world.now + DAY * 10);
    }
}

#[test]
fn an_authority_is_replaced_before_a_certificate_could_outlive_it() {
    let mut world = machines(1);
    hosts(&mut world, &["a.lan"]);
    issue(&mut world);
    let end = kat_pki::validity_of(&stored(&mut world).certificate).unwrap();
    world.now = end.not_after - DAY * 121;
    issue(&mut world);
    assert!(!stored(&mut world).is_being_replaced());
    world.now = end.not_after - DAY * 119;
    issue(&mut world);
    let next = stored(&mut world).next.unwrap();
    assert_eq!(next.replacement.reason, RotationReason::Expires);
    world.now += DAY * 30;
    issue(&mut world);
    let after = stored(&mut world);
    assert_eq!(after.certificate, next.certificate);
    assert!(!after.is_being_replaced());
}

#[test]
fn another_data_key_seals_the_keys_of_both_authorities() {
    let mut world = machines(1);
    hosts(&mut world, &["a.lan"]);
    issue(&mut world);
    request(&mut world, 10);
    issue(&mut world);
    let step = another_data_key(&world.snapshot(), world.now).unwrap();
    world.apply(&step.operations);
    loop {
        let step = reseal_batch(&world.snapshot()).unwrap();
        assert_eq!(step.failed, None);
        if step.operations.is_empty() {
            break;
        }
        world.apply(&step.operations);
    }
    assert_eq!(world.snapshot().sealing_keys.len(), 1);
    world.now += DAY * 11;
    issue(&mut world);
    let end = stored(&mut world);
    assert!(!end.is_being_replaced());
    opens(&mut world, &end.certificate, &end.key);
}

#[test]
fn a_leader_of_an_earlier_version_leaves_the_present_authority_in_use() {
    let mut world = machines(1);
    hosts(&mut world, &["a.lan"]);
    issue(&mut world);
    let first = stored(&mut world);
    request(&mut world, 10);
    issue(&mut world);
    // What it writes when it seals the key again: the fields that it knows.
    world.write(keys::INGRESS_AUTHORITY.to_owned(), &first);
    assert_eq!(issue(&mut world), 0);
    assert_eq!(stored(&mut world), first);
    request(&mut world, 0);
    issue(&mut world);
    assert_ne!(stored(&mut world).certificate, first.certificate);
}

/// A leader that writes a step may be lost before the next one, and another may hold an older copy of
/// the store: after each write clients that trust what `katcall ca trust` prints accept the certificate
/// of a host that all domains have, and no authority issues it before its time is over.
#[test]
fn at_every_point_of_a_replacement_the_certificate_in_use_is_of_a_shown_authority() {
    let (mut replaced, mut refused) = (0, 0);
    for seed in 1_u64..9 {
        let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut draw = move |below: u64| {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (random >> 33) % below
        };
        let mut world = machines(1);
        set_domains(&mut world, &["lan"]);
        hosts(&mut world, &["a.lan", "b.lan"]);
        issue(&mut world);
        let mut leaders = [world.snapshot(), world.snapshot()];
        let mut shown: BTreeMap<String, Timestamp> = BTreeMap::new();
        let mut present = hash(&stored(&mut world).certificate);
        shown.insert(present.clone(), world.now);
        for _ in 0..150 {
            let which = usize::try_from(draw(2)).unwrap();
            match draw(24) {
                0..6 => leaders[which] = world.snapshot(),
                6..10 => world.now += DAY * 4,
                10..12 if !stored(&mut world).is_being_replaced() => request(&mut world, 10),
                12 => {
                    let domains = [&["lan"][..], &["lan", "corp"]];
                    set_domains(&mut world, domains[usize::try_from(draw(2)).unwrap()]);
                }
                _ => {
                    let step = next_certificate(&leaders[which], world.now).unwrap();
                    let step = step.unwrap_or_default();
                    let holds = step.conditions.iter().all(|condition| {
                        let Compare::ModRevision(key, revision) = condition else {
                            panic!("{condition:?}")
                        };
                        let entry = world.entries.get(key.as_str());
                        entry.map_or(0, |entry| entry.mod_revision) == *revision
                    });
                    if holds {
                        world.apply(&step.operations);
                    } else {
                        refused += 1;
                    }
                }
            }
            let record = stored(&mut world);
            let next = record.next.as_ref().map(|next| hash(&next.certificate));
            let previous = record.previous.as_ref();
            let previous = previous.map(|previous| hash(&previous.certificate));
            let now_present = hash(&record.certificate);
            if now_present != present {
                let since = shown[&now_present];
                assert!(world.now >= since + DAY * 10, "seed {seed}: too early");
                assert_eq!(previous.as_ref(), Some(&present), "seed {seed}");
                present = now_present;
                replaced += 1;
            }
            if let Some(next) = &next {
                shown.entry(next.clone()).or_insert(world.now);
            }
            for host in ["a.lan", "b.lan"] {
                let by = issuer(&mut world, host);
                assert!(
                    by == present || Some(&by) == previous.as_ref(),
                    "seed {seed}: {host} has a certificate of an authority that clients may not trust"
                );
            }
        }
        // It comes to its end when it is left alone.
        for _ in 0..4 {
            issue(&mut world);
            world.now += DAY * 31;
        }
        issue(&mut world);
        let end = stored(&mut world);
        assert!(!end.is_being_replaced(), "seed {seed}");
        assert_eq!(issuer(&mut world, "a.lan"), hash(&end.certificate));
    }
    assert!(replaced > 0, "no authority was replaced");
    assert!(refused > 0, "no leader was outdated");
}

#[test]
fn the_start_and_the_end_of_a_replacement_are_events_of_the_cluster() {
    let mut world = machines(1);
    hosts(&mut world, &["a.lan"]);
    issue(&mut world);
    request(&mut world, 10);
    issue(&mut world);
    assert_eq!(events(&mut world, EventReason::ReplacementStarted), 1);
    assert_eq!(events(&mut world, EventReason::AuthorityReplaced), 0);
    world.now += DAY * 11;
    issue(&mut world);
    assert_eq!(events(&mut world, EventReason::ReplacementStarted), 1);
    assert_eq!(events(&mut world, EventReason::AuthorityReplaced), 1);
}
