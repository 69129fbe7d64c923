//! Forwarding of other names to resolvers.

use super::*;

#[tokio::test]
async fn other_names_are_asked_elsewhere_once() {
    let resolver = Resolver::answering(one_address).await;
    let server = Running::asking(&[&resolver]).await;
    for asked in ["www.example.org.", "WWW.example.org."] {
        let answer = server.ask(asked, RecordType::A).await;
        assert!(!answer.metadata.authoritative);
        assert!(
            matches!(answer.answers[0].data, RData::A(A(address)) if address == Ipv4Addr::new(192, 0, 2, 1))
        );
    }
    assert_eq!(resolver.asked(), 1, "the second answer was not kept");
    server.ask("www.example.org.", RecordType::AAAA).await;
    assert_eq!(resolver.asked(), 2, "another type is another question");
}

#[tokio::test]
async fn names_of_the_cluster_are_never_asked_elsewhere() {
    let resolver = Resolver::answering(one_address).await;
    let server = Running::asking(&[&resolver]).await;
    for asked in [
        "nope.kat.cluster.local.",
        "web.default.kat.cluster.local.",
        "9.9.100.10.in-addr.arpa.",
    ] {
        server.ask(asked, RecordType::TXT).await;
    }
    assert_eq!(resolver.asked(), 0);
}

#[tokio::test]
async fn the_same_question_is_asked_once_at_a_time() {
    fn slow(question: &Message) -> Vec<Message> {
        std::thread::sleep(Duration::from_millis(200));
        one_address(question)
    }
    let resolver = Resolver::answering(slow).await;
    let server = Running::asking(&[&resolver]).await;
    let asks = (0..20).map(|_| server.ask("www.example.org.", RecordType::A));
    for answer in futures_util::future::join_all(asks).await {
        assert_eq!(answer.answers.len(), 1);
    }
    assert_eq!(resolver.asked(), 1);
}

#[tokio::test]
async fn missing_names_are_kept_as_long_as_their_authority_says() {
    fn missing(question: &Message) -> Vec<Message> {
        let mut answers = code(question, ResponseCode::NXDomain);
        let zone = name("org.");
        let authority = SOA::new(zone.clone(), zone.clone(), 1, 1, 1, 1, 30);
        answers[0].add_authority(Record::from_rdata(zone, 30, RData::SOA(authority)));
        answers
    }
    let resolver = Resolver::answering(missing).await;
    let server = Running::asking(&[&resolver]).await;
    for _ in 0..2 {
        let answer = server.ask("nope.example.org.", RecordType::A).await;
        assert_eq!(answer.metadata.response_code, ResponseCode::NXDomain);
        assert_eq!(answer.authorities.len(), 1);
    }
    assert_eq!(resolver.asked(), 1);
}

#[tokio::test]
async fn truncated_answers_are_fetched_over_tcp() {
    fn cut(question: &Message) -> Vec<Message> {
        let mut answer = answer_to(question);
        answer.metadata.truncation = true;
        vec![answer]
    }
    fn whole(question: &Message) -> Vec<Message> {
        let mut answer = answer_to(question);
        answer.add_answers((0..3).map(|last| address_record(question, last)));
        vec![answer]
    }
    let resolver = Resolver::start("127.0.0.1", 0, cut, whole).await;
    let server = Running::asking(&[&resolver]).await;
    let answer = server.ask("www.example.org.", RecordType::A).await;
    assert!(!answer.metadata.truncation);
    assert_eq!(answer.answers.len(), 3);
    assert_eq!(resolver.asked(), 2);
}

#[tokio::test]
async fn answers_to_other_questions_are_not_taken() {
    fn forged(question: &Message) -> Vec<Message> {
        let mut wrong_id = one_address(question).remove(0);
        wrong_id.metadata.id = question.metadata.id.wrapping_add(1);
        let mut wrong_name = answer_to(question);
        wrong_name.queries = vec![Query::query(name("bank.example."), RecordType::A)];
        wrong_name.add_answer(address_record(question, 66));
        let mut wrong_type = answer_to(question);
        wrong_type.queries[0].set_query_type(RecordType::AAAA);
        wrong_type.add_answer(address_record(question, 66));
        let mut not_an_answer = question.clone();
        not_an_answer.add_answer(address_record(question, 66));
        let mut right = answer_to(question);
        right.add_answer(address_record(question, 7));
        vec![wrong_id, wrong_name, wrong_type, not_an_answer, right]
    }
    let resolver = Resolver::answering(forged).await;
    let server = Running::asking(&[&resolver]).await;
    let answer = server.ask("www.example.org.", RecordType::A).await;
    assert!(
        matches!(answer.answers[0].data, RData::A(A(address)) if address == Ipv4Addr::new(192, 0, 2, 7))
    );
}

#[tokio::test]
async fn the_next_resolver_is_asked_and_then_preferred() {
    fn broken(question: &Message) -> Vec<Message> {
        code(question, ResponseCode::ServFail)
    }
    let first = Resolver::answering(broken).await;
    let second = Resolver::start("127.0.0.2", first.address.port(), one_address, nothing).await;
    let server = Running::asking(&[&first, &second]).await;
    assert_eq!(
        server
            .ask("a.example.org.", RecordType::A)
            .await
            .answers
            .len(),
        1
    );
    assert_eq!((first.asked(), second.asked()), (1, 1));
    assert_eq!(
        server
            .ask("b.example.org.", RecordType::A)
            .await
            .answers
            .len(),
        1
    );
    assert_eq!(
        (first.asked(), second.asked()),
        (1, 2),
        "the broken one was asked again"
    );
}

#[tokio::test]
async fn when_nobody_answers_the_client_learns_why() {
    fn refuse(question: &Message) -> Vec<Message> {
        code(question, ResponseCode::Refused)
    }
    let resolver = Resolver::answering(refuse).await;
    let server = Running::asking(&[&resolver]).await;
    let packet = server
        .udp(&with_edns(
            question("www.example.org.", RecordType::A),
            1232,
        ))
        .await;
    let answer = Message::from_vec(&packet).unwrap();
    assert_eq!(answer.metadata.response_code, ResponseCode::ServFail);
    let text = String::from_utf8_lossy(&packet);
    assert!(text.contains("127.0.0.1: it says"), "{text}");
    assert_eq!(resolver.asked(), 2, "two rounds");
}

#[tokio::test]
async fn its_own_address_is_not_asked() {
    let node = NodeNetwork {
        upstream_dns: vec![
            IpAddr::V4(Ipv4Addr::new(10, 100, 0, 1)),
            IpAddr::V4(Ipv4Addr::new(10, 100, 4, 1)),
        ],
        ..node()
    };
    let server = Running::with(&node, &records(), settings()).await;
    let packet = server
        .udp(&with_edns(
            question("www.example.org.", RecordType::A),
            1232,
        ))
        .await;
    let answer = Message::from_vec(&packet).unwrap();
    assert_eq!(answer.metadata.response_code, ResponseCode::ServFail);
    assert!(String::from_utf8_lossy(&packet).contains("this machine has no resolver to ask"));
}

#[tokio::test]
async fn a_flood_of_other_names_has_a_bound() {
    let resolver = Resolver::answering(nothing).await;
    let node = NodeNetwork {
        upstream_dns: vec![resolver.address.ip()],
        ..node()
    };
    let settings = DnsSettings {
        forwards: 3,
        upstream_port: resolver.address.port(),
        ..settings()
    };
    let server = Running::with(&node, &records(), settings).await;
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    for number in 0..10 {
        let asked = question(&format!("{number}.example.org."), RecordType::A);
        socket
            .send_to(&asked.to_vec().unwrap(), server.address)
            .await
            .unwrap();
    }
    let mut buffer = vec![0; 512];
    for _ in 0..7 {
        let length = timeout(Duration::from_secs(1), socket.recv(&mut buffer))
            .await
            .expect("waits for a resolver")
            .unwrap();
        let answer = Message::from_vec(&buffer[..length]).unwrap();
        assert_eq!(answer.metadata.response_code, ResponseCode::ServFail);
    }
    // Names of the cluster are still answered.
    assert_eq!(
        server
            .ask("db.foo.kat.cluster.local.", RecordType::A)
            .await
            .answers
            .len(),
        1
    );
}

#[tokio::test]
async fn questions_that_want_no_recursion_are_not_forwarded() {
    let resolver = Resolver::answering(one_address).await;
    let server = Running::asking(&[&resolver]).await;
    let mut asked = question("www.example.org.", RecordType::A);
    asked.metadata.recursion_desired = false;
    let answer = Message::from_vec(&server.udp(&asked.to_vec().unwrap()).await).unwrap();
    assert_eq!(answer.metadata.response_code, ResponseCode::Refused);
    assert_eq!(resolver.asked(), 0);
}

#[test]
fn kept_answers_say_how_long_they_still_hold() {
    let asked = question("www.example.org.", RecordType::A);
    let request = parse(&asked.to_vec().unwrap()).unwrap();
    let answer = one_address(&asked).remove(0);
    for (age, left) in [(0, 300), (299, 1), (400, 0)] {
        let reply = crate::dns::server::relay(&request, &answer, age);
        assert_eq!(reply.answers[0].ttl, left);
    }
}

#[tokio::test]
async fn one_source_that_floods_leaves_the_others_their_forwards() {
    fn of_the_other(question: &Message) -> Vec<Message> {
        match question.queries[0].name().to_ascii().starts_with("www.") {
            true => one_address(question),
            false => Vec::new(),
        }
    }
    let resolver = Resolver::answering(of_the_other).await;
    let server = Running::asking(&[&resolver]).await;
    let flooding = UdpSocket::bind("127.0.0.5:0").await.unwrap();
    for number in 0..300 {
        let asked = question(&format!("{number}.example.org."), RecordType::A);
        flooding
            .send_to(&asked.to_vec().unwrap(), server.address)
            .await
            .unwrap();
    }
    let mut buffer = vec![0; 512];
    let read = timeout(PATIENCE, flooding.recv(&mut buffer));
    let length = read.await.expect("all of them wait").unwrap();
    let refused = Message::from_vec(&buffer[..length]).unwrap();
    assert_eq!(refused.metadata.response_code, ResponseCode::ServFail);
    let answer = server.ask("www.example.org.", RecordType::A).await;
    assert_eq!(answer.answers.len(), 1, "another one is answered");
}

/// A namespace `dev` with a workload `github`, created before such namespace names were refused.
#[tokio::test]
async fn a_namespace_called_like_a_top_level_domain_has_only_names_that_the_world_lacks() {
    fn world(question: &Message) -> Vec<Message> {
        match question.queries[0].name().to_ascii().as_str() {
            "github.dev." => one_address(question),
            "broken.dev." => code(question, ResponseCode::ServFail),
            _ => code(question, ResponseCode::NXDomain),
        }
    }
    let resolver = Resolver::answering(world).await;
    let node = NodeNetwork {
        upstream_dns: vec![resolver.address.ip()],
        ..node()
    };
    let own = |names: &[&str]| {
        let address: Ipv4Addr = [10, 200, 0, 9].into();
        let found = names.iter().map(|name| ((*name).to_owned(), vec![address]));
        DnsRecords {
            records: found.collect(),
            ..records()
        }
    };
    let records = own(&["github.dev", "mine.dev", "broken.dev", "web.default"]);
    // The client's container is in the namespace `foo`.
    let mut instances = instances();
    for instance in instances.instances.values_mut() {
        instance.address = Ipv4Addr::LOCALHOST;
    }
    let settings = DnsSettings {
        upstream_port: resolver.address.port(),
        ..settings()
    };
    let server = Running::with(&node, &records, settings).await;
    let zone = Zone::new(&node, &instances, &records).unwrap();
    server.zone.send_replace(Arc::new(zone));
    for _ in 0..2 {
        let address = async |name: &str| {
            let answer = server.ask(name, RecordType::A).await;
            let found = answer.answers.first().map(|record| record.data.clone());
            (answer.metadata.response_code, found)
        };
        let (_, github) = address("github.dev.").await;
        assert_eq!(github, Some(RData::A(A::new(192, 0, 2, 1))), "the world's");
        let (_, mine) = address("mine.dev.").await;
        assert_eq!(mine, Some(RData::A(A::new(10, 200, 0, 9))), "nobody else's");
        let (said, _) = address("broken.dev.").await;
        assert_eq!(said, ResponseCode::ServFail, "it may be the world's");
        // Names with the cluster's domain, and names in other namespaces, are not affected.
        let (_, full) = address("github.dev.kat.cluster.local.").await;
        assert_eq!(full, Some(RData::A(A::new(10, 200, 0, 9))));
        let (_, plain) = address("web.default.").await;
        assert_eq!(plain, Some(RData::A(A::new(10, 200, 0, 9))));
    }
}
