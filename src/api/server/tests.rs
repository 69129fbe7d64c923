//! Sockets of the API server: address families, the watchdog of the accept loop, and plain HTTP.

use std::net::IpAddr;

use super::*;
use crate::server::bind::bind;

/// The test needs root, because it creates a network namespace.
#[test]
fn the_port_takes_both_families_where_sockets_of_ipv6_are_its_own() {
    let thread = std::thread::spawn(|| {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
        std::fs::write("/proc/sys/net/ipv6/bindv6only", "1").unwrap();
        let up = std::process::Command::new("ip")
            .args(["link", "set", "lo", "up"])
            .status();
        assert!(up.unwrap().success());
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let listener = bind(0).unwrap();
            let port = listener.local_addr().unwrap().port();
            for address in ["127.0.0.1", "::1"] {
                let address: IpAddr = address.parse().unwrap();
                let connected = TcpStream::connect((address, port)).await;
                assert!(connected.is_ok(), "{address}: {connected:?}");
            }
            let taken = bind(port).unwrap_err();
            assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
        });
    });
    thread.join().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_socket_without_callers_does_not_look_hung() {
    let folder = tempfile::tempdir().unwrap();
    let (pulses, cancel) = (LoopPulses::default(), CancellationToken::new());
    let server = ApiServer::new(
        Router::new(),
        "a port",
        ApiLimits::default(),
        pulses,
        cancel,
    );
    let local = SocketListener {
        listener: UnixListener::bind(folder.path().join("api.sock")).unwrap(),
        access: SocketAccess::Admin,
        leader: None,
    };
    let accepting = tokio::spawn(server.clone().accept_local(local));
    tokio::time::sleep(Duration::from_secs(3600)).await;
    let pulses = &server.pulses;
    assert_eq!((pulses.stalled(), pulses.watched().len()), (None, 1));
    server.cancel.cancel();
    accepting.await.unwrap();
}

#[test]
fn the_answer_to_plain_http_says_its_length() {
    let text = std::str::from_utf8(PLAIN_ANSWER).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    assert!(
        head.ends_with(&format!("content-length: {}", body.len())),
        "{}",
        body.len()
    );
    let body: kat_types::api::ErrorBody = serde_json::from_str(body).unwrap();
    assert_eq!(body.error, "TlsRequired");
}
