//! Answers to names of the cluster, to broken packets and to many clients.

use super::*;

#[tokio::test]
async fn answers_names_of_the_cluster_over_udp_and_tcp() {
    let server = Running::with(&node(), &records(), settings()).await;
    let answer = server
        .ask("Web.default.KAT.cluster.local.", RecordType::A)
        .await;
    assert!(answer.metadata.authoritative && answer.metadata.recursion_available);
    assert_eq!(answer.answers.len(), 2);

    let mut stream = server.tcp().await;
    for _ in 0..2 {
        let question = question("nope.kat.cluster.local.", RecordType::A);
        write_framed(&mut stream, &question.to_vec().unwrap()).await;
        let answer = Message::from_vec(&read_framed(&mut stream).await).unwrap();
        assert_eq!(answer.metadata.response_code, ResponseCode::NXDomain);
        assert!(matches!(answer.authorities[0].data, RData::SOA(_)));
    }
}

#[tokio::test]
async fn a_new_snapshot_is_answered_at_once() {
    let server = Running::with(&node(), &records(), settings()).await;
    let mut newer = records();
    newer
        .records
        .insert("new.default".to_owned(), vec![Ipv4Addr::new(10, 100, 0, 9)]);
    server
        .zone
        .send(Arc::new(Zone::new(&node(), &instances(), &newer).unwrap()))
        .unwrap();
    let answer = server
        .ask("new.default.kat.cluster.local.", RecordType::A)
        .await;
    assert_eq!(answer.answers.len(), 1);
}

#[tokio::test]
async fn cancelling_ends_it() {
    let server = Running::with(&node(), &records(), settings()).await;
    server.cancel.cancel();
    let ended = timeout(PATIENCE, server.task).await.unwrap().unwrap();
    assert!(ended.is_ok());
}

#[tokio::test]
async fn a_taken_address_is_an_error_that_names_it() {
    let server = Running::with(&node(), &records(), settings()).await;
    let zone = server.zone.subscribe();
    let error = serve(server.address, zone, CancellationToken::new())
        .await
        .unwrap_err();
    assert!(error.to_string().starts_with(&format!(
        "can't listen on {} for DNS over UDP",
        server.address
    )));
}

/// A zone with one name that has `count` addresses.
fn crowd(count: u16) -> DnsRecords {
    let addresses = (0..count).map(|number| {
        let [high, low] = number.to_be_bytes();
        Ipv4Addr::new(10, 100, high, low)
    });
    let mut records = records();
    records
        .records
        .insert("crowd.default".to_owned(), addresses.collect());
    records
}

#[tokio::test]
async fn what_does_not_fit_is_cut_and_comes_over_tcp() {
    let server = Running::with(&node(), &crowd(1000), settings()).await;
    let asked = question("crowd.default.kat.cluster.local.", RecordType::A);
    let plain = server.udp(&asked.to_vec().unwrap()).await;
    assert!(plain.len() <= 512, "{} bytes", plain.len());
    let answer = Message::from_vec(&plain).unwrap();
    assert!(answer.metadata.truncation && answer.answers.len() > 20);
    assert!(answer.edns.is_none());

    for (payload, limit) in [(100, 512), (700, 700), (4096, 1232)] {
        let packet = server.udp(&with_edns(asked.clone(), payload)).await;
        assert!(
            packet.len() <= limit && packet.len() > limit - 32,
            "{} bytes",
            packet.len()
        );
        let answer = Message::from_vec(&packet).unwrap();
        assert!(answer.metadata.truncation);
        let edns = answer.edns.expect("the OPT record was cut off");
        assert_eq!(edns.max_payload(), 1232);
        assert!(edns.flags().dnssec_ok);
    }

    let mut stream = server.tcp().await;
    write_framed(&mut stream, &with_edns(asked, 512)).await;
    let answer = Message::from_vec(&read_framed(&mut stream).await).unwrap();
    assert!(!answer.metadata.truncation);
    assert_eq!(answer.answers.len(), 1000);
}

#[tokio::test]
async fn malformed_packets_get_an_error_or_nothing_and_do_no_harm() {
    let server = Running::with(&node(), &records(), settings()).await;
    let good = question("web.default.kat.cluster.local.", RecordType::A)
        .to_vec()
        .unwrap();
    let changed = |place: usize, byte: u8| {
        let mut packet = good.clone();
        packet[place] = byte;
        packet
    };
    for (packet, code) in [
        (changed(5, 0), ResponseCode::FormErr),
        (changed(5, 2), ResponseCode::FormErr),
        (changed(4, 255), ResponseCode::FormErr),
        (changed(7, 1), ResponseCode::FormErr),
        (changed(9, 1), ResponseCode::FormErr),
        (changed(11, 1), ResponseCode::FormErr),
        (changed(12, 200), ResponseCode::FormErr),
        (good[..20].to_vec(), ResponseCode::FormErr),
        (changed(2, 0x10), ResponseCode::NotImp),
        (changed(2, 0x29), ResponseCode::NotImp),
    ] {
        let reply = server.udp(&packet).await;
        assert_eq!(reply.len(), 12);
        assert_eq!(reply[..2], packet[..2], "the id");
        assert_eq!(reply[2], 0x80 | packet[2] & 0x79, "the operation");
        assert_eq!(reply[3], code.low());
    }
    // None of these packets gets an answer, so the next answer belongs to the next question.
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    for packet in [vec![], vec![0; 11], changed(2, 0x81)] {
        socket.send_to(&packet, server.address).await.unwrap();
    }
    socket.send_to(&good, server.address).await.unwrap();
    let mut buffer = vec![0; 512];
    let length = timeout(PATIENCE, socket.recv(&mut buffer))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(
        Message::from_vec(&buffer[..length]).unwrap().answers.len(),
        2
    );
}

#[tokio::test]
async fn unknown_versions_of_edns_are_named() {
    let server = Running::with(&node(), &records(), settings()).await;
    let mut asked = question("web.default.kat.cluster.local.", RecordType::A);
    let mut edns = Edns::new();
    edns.set_version(1);
    asked.set_edns(edns);
    let answer = Message::from_vec(&server.udp(&asked.to_vec().unwrap()).await).unwrap();
    // BADVERS and BADSIG share this code.
    assert_eq!(u16::from(answer.metadata.response_code), 16);
    assert!(answer.answers.is_empty());
}

#[tokio::test]
async fn silent_and_too_many_connections_are_closed() {
    let settings = DnsSettings {
        connections: 2,
        connection_timeout: Duration::from_millis(300),
        ..settings()
    };
    let server = Running::with(&node(), &records(), settings).await;
    let asked = question("web.default.kat.cluster.local.", RecordType::A)
        .to_vec()
        .unwrap();
    let mut held = [server.tcp().await, server.tcp().await];
    for stream in &mut held {
        write_framed(stream, &asked).await;
        read_framed(stream).await;
    }
    let mut third = server.tcp().await;
    let read = timeout(PATIENCE, third.read(&mut [0; 1])).await.unwrap();
    assert!(
        !matches!(read, Ok(1..)),
        "a connection beyond the limit was served"
    );

    // One connection sends half a question and the other nothing. Both are closed, and new
    // connections are accepted.
    held[0].write_all(&[0, 50, 1]).await.unwrap();
    for stream in &mut held {
        let read = timeout(PATIENCE, stream.read(&mut [0; 1]))
            .await
            .expect("not closed");
        assert!(!matches!(read, Ok(1..)));
    }
    let mut again = server.tcp().await;
    write_framed(&mut again, &asked).await;
    assert!(!read_framed(&mut again).await.is_empty());
}

#[tokio::test]
async fn one_source_that_holds_connections_leaves_the_others_theirs() {
    let server = Running::with(&node(), &records(), settings()).await;
    let asked = question("web.default.kat.cluster.local.", RecordType::A)
        .to_vec()
        .unwrap();
    let mut held = Vec::new();
    for _ in 0..8 {
        let mut stream = server.tcp().await;
        write_framed(&mut stream, &asked).await;
        read_framed(&mut stream).await;
        held.push(stream);
    }
    let mut ninth = server.tcp().await;
    let read = timeout(PATIENCE, ninth.read(&mut [0; 1])).await.unwrap();
    assert!(!matches!(read, Ok(1..)), "a ninth was served");
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.6:0".parse().unwrap()).unwrap();
    let mut other = socket.connect(server.address).await.unwrap();
    write_framed(&mut other, &asked).await;
    assert!(!read_framed(&mut other).await.is_empty());
}
