//! The hook, its socket and the veth pairs that it makes.

use std::{
    io::{Read, Write},
    os::unix::net::UnixStream,
    time::{Duration, Instant},
};

use super::namespaced_machine::{
    ADDRESS, Container, Machine, as_user, eventually, fetch, in_new_namespace, run, serve_in,
};
use kat_network::containers::attach;
use kat_types::machine::{fence::BootTime, network::StartGate};

const UID: u32 = 20001;
const OTHER: u32 = 20002;

/// Names of the machine's links that begin with `kat`.
fn kat_links() -> Vec<String> {
    run("ip -o link")
        .lines()
        .filter_map(|line| line.split(": ").nth(1))
        .filter_map(|name| name.split('@').next())
        .filter(|name| name.starts_with("kat"))
        .map(str::to_owned)
        .collect()
}

#[test]
fn a_container_gets_its_address_and_reaches_the_machine_and_others() {
    in_new_namespace(|| async {
        let mut machine = Machine::start();
        std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap();
        let one = machine.instance("web-aaaaa", UID, 10, StartGate::Open);
        let two = machine.instance("web-bbbbb", OTHER, 11, StartGate::Open);
        let first = machine.container(UID, "web-aaaaa");
        let second = machine.container(OTHER, "web-bbbbb");
        let start = Instant::now();
        machine.hook(UID, "web-aaaaa", first.pid()).await.unwrap();
        println!("hook answered after {:?}", start.elapsed());
        machine
            .hook(OTHER, "web-bbbbb", second.pid())
            .await
            .unwrap();

        let own = kat_network::containers::namespaces::NetworkNamespace::own().unwrap();
        serve_in(&own, 8080);
        first.serve(80);
        second.serve(80);
        let seen = first.fetch((ADDRESS, 8080).into()).await.unwrap();
        assert_eq!(
            seen,
            one.to_string(),
            "the machine sees the overlay address"
        );
        assert_eq!(
            second.fetch((one, 80).into()).await.unwrap(),
            two.to_string()
        );
        assert!(
            fetch((two, 80).into()).is_ok(),
            "the machine reaches the container"
        );

        let inside = first.namespace().run(|| {
            (
                run("ip -4 -o address show eth0"),
                run("ip route"),
                run("ip -6 address show eth0"),
            )
        });
        let (addresses, routes, six) = inside.unwrap();
        assert!(addresses.contains("10.90.1.10/32"), "{addresses}");
        assert!(
            routes.contains("default via 10.90.1.1 dev eth0"),
            "{routes}"
        );
        assert_eq!(six, "", "no IPv6 on the link");
        let name = attach::host_link_name("web-aaaaa");
        let link = run(&format!("ip link show {name}"));
        assert!(
            link.contains("mtu 1420") && link.contains("alias kat:web-aaaaa"),
            "{link}"
        );
        assert!(run("ip route").contains(&format!("10.90.1.10 dev {name}")));
    });
}

#[test]
fn a_container_can_not_send_with_anothers_address() {
    in_new_namespace(|| async {
        let mut machine = Machine::start();
        std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap();
        machine.instance("web-aaaaa", UID, 10, StartGate::Open);
        let container = machine.container(UID, "web-aaaaa");
        machine
            .hook(UID, "web-aaaaa", container.pid())
            .await
            .unwrap();
        let own = kat_network::containers::namespaces::NetworkNamespace::own().unwrap();
        let socket = own
            .run(|| std::net::UdpSocket::bind("0.0.0.0:9999"))
            .unwrap()
            .unwrap();
        socket
            .set_read_timeout(Some(Duration::from_millis(500)))
            .unwrap();
        let send = |source: &'static str| {
            container
                .namespace()
                .run(|| {
                    let sender = std::net::UdpSocket::bind((source, 0)).unwrap();
                    sender.send_to(b"x", (ADDRESS, 9999)).unwrap();
                })
                .unwrap();
        };
        container
            .namespace()
            .run(|| run("ip address add 10.90.1.77/32 dev eth0"))
            .unwrap();
        let mut buffer = [0; 8];
        send("10.90.1.10");
        assert!(socket.recv(&mut buffer).is_ok(), "its own address passes");
        send("10.90.1.77");
        assert!(socket.recv(&mut buffer).is_err(), "another does not");
    });
}

#[test]
fn link_and_route_go_with_the_container_and_come_back_with_the_next() {
    in_new_namespace(|| async {
        let mut machine = Machine::start();
        let address = machine.instance("web-aaaaa", UID, 10, StartGate::Open);
        for _ in 0..3 {
            let container = machine.container(UID, "web-aaaaa");
            machine
                .hook(UID, "web-aaaaa", container.pid())
                .await
                .unwrap();
            container.serve(80);
            fetch((address, 80).into()).unwrap();
            assert_eq!(kat_links().len(), 1);
            container.stop();
            // The serving thread of the test keeps the namespace alive through its socket, as a
            // leaked descriptor would: the next start replaces the stale link.
        }
        let container = machine.container(UID, "web-aaaaa");
        machine
            .hook(UID, "web-aaaaa", container.pid())
            .await
            .unwrap();
        container.stop();
        eventually("link and route are gone", async || {
            kat_links().is_empty() && !run("ip route").contains("10.90.1.10")
        })
        .await;
    });
}

#[test]
fn calls_at_once_for_one_instance_all_end_well() {
    in_new_namespace(|| async {
        let mut machine = Machine::start();
        let address = machine.instance("web-aaaaa", UID, 10, StartGate::Open);
        let container = machine.container(UID, "web-aaaaa");
        container.serve(80);
        let calls = (0..8).map(|_| machine.hook(UID, "web-aaaaa", container.pid()));
        for outcome in futures_util::future::join_all(calls).await {
            outcome.unwrap();
        }
        assert_eq!(kat_links().len(), 1);
        fetch((address, 80).into()).unwrap();
    });
}

#[test]
fn the_hook_refuses_unauthorized_callers_and_creates_nothing() {
    in_new_namespace(|| async {
        let mut machine = Machine::start();
        machine.instance("web-aaaaa", UID, 10, StartGate::Open);
        machine.instance("web-bbbbb", OTHER, 11, StartGate::Open);
        let mine = machine.container(UID, "web-aaaaa");
        let other = machine.container(OTHER, "web-bbbbb");
        let unclaimed = Container::start(UID);
        let plain = Container::on_host_network(UID);
        machine.claim(plain.pid(), UID, "web-aaaaa");
        // A process of another user is in the instance's control group.
        let planted = Container::start(OTHER);
        machine.claim(planted.pid(), UID, "web-aaaaa");
        for (uid, instance, pid, expected) in [
            (OTHER, "web-aaaaa", mine.pid(), "has no instance web-aaaaa"),
            (UID, "web-zzzzz", mine.pid(), "has no instance web-zzzzz"),
            (
                20999,
                "web-aaaaa",
                mine.pid(),
                "has no instance on this machine",
            ),
            (
                0,
                "web-aaaaa",
                mine.pid(),
                "has no instance on this machine",
            ),
            (
                UID,
                "web-aaaaa",
                other.pid(),
                "not in unit kat-default-web-aaaaa.service",
            ),
            (UID, "web-aaaaa", unclaimed.pid(), "not in unit"),
            (
                UID,
                "web-aaaaa",
                plain.pid(),
                "the machine's network namespace",
            ),
            (UID, "web-aaaaa", planted.pid(), "belongs to uid 20002"),
            (UID, "web-aaaaa", 2_000_000_000, "can't be looked at"),
        ] {
            let error = machine.hook(uid, instance, pid).await.unwrap_err();
            assert!(error.contains(expected), "{uid} {instance} {pid}: {error}");
        }
        assert_eq!(kat_links(), Vec::<String>::new());
        // The control: with the right caller and process the hook succeeds.
        machine.hook(UID, "web-aaaaa", mine.pid()).await.unwrap();
    });
}

#[test]
fn the_gate_holds_until_it_opens_and_closes_for_good() {
    in_new_namespace(|| async {
        let mut machine = Machine::start();
        machine.instance("web-aaaaa", UID, 10, StartGate::Hold);
        machine.instance("web-ccccc", UID, 12, StartGate::Closed);
        let container = machine.container(UID, "web-aaaaa");
        let closed = machine.container(UID, "web-ccccc");
        let error = machine
            .hook(UID, "web-ccccc", closed.pid())
            .await
            .unwrap_err();
        assert!(error.contains("must not start"), "{error}");

        let socket = machine.socket();
        let pid = container.pid();
        let held = tokio::spawn(as_user(UID, move || {
            let mut stream = UnixStream::connect(socket).unwrap();
            stream
                .set_read_timeout(Some(Duration::from_secs(10)))
                .unwrap();
            writeln!(stream, "{{\"instance\":\"web-aaaaa\",\"pid\":{pid}}}").unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            answer
        }));
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert!(!held.is_finished(), "it is held");
        assert_eq!(kat_links(), Vec::<String>::new());
        machine.instance("web-aaaaa", UID, 10, StartGate::Open);
        assert_eq!(held.await.unwrap(), "{}\n");
        assert_eq!(kat_links().len(), 1);
    });
}

#[test]
fn a_call_outlives_a_restart_of_the_server() {
    in_new_namespace(|| async {
        let mut machine = Machine::start();
        machine.instance("web-aaaaa", UID, 10, StartGate::Hold);
        let container = machine.container(UID, "web-aaaaa");
        let held = tokio::spawn(machine.hook(UID, "web-aaaaa", container.pid()));
        tokio::time::sleep(Duration::from_millis(300)).await;
        machine.stop_hook();
        // For a while nothing listens on the socket.
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert!(!held.is_finished());
        machine.serve_hook();
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert!(!held.is_finished(), "it is held again");
        machine.instance("web-aaaaa", UID, 10, StartGate::Open);
        held.await.unwrap().unwrap();
        assert_eq!(kat_links().len(), 1);
    });
}

#[test]
fn what_an_earlier_call_left_half_made_is_replaced() {
    in_new_namespace(|| async {
        let mut machine = Machine::start();
        let address = machine.instance("web-aaaaa", UID, 10, StartGate::Open);
        let container = machine.container(UID, "web-aaaaa");
        let pid = container.pid();
        container.serve(80);
        machine.hook(UID, "web-aaaaa", pid).await.unwrap();
        let name = attach::host_link_name("web-aaaaa");
        let link = run(&format!("ip -o link show {name}"));
        let (_, after) = link.split_once("link/ether ").unwrap();
        let mac = after.split(' ').next().unwrap();
        // An earlier call was interrupted right after it had made the pair.
        run(&format!("ip link del {name}"));
        run(&format!(
            "ip link add {name} address {mac} type veth peer name eth0 netns {pid}"
        ));
        machine.hook(UID, "web-aaaaa", pid).await.unwrap();
        assert_eq!(kat_links(), [name]);
        fetch((address, 80).into()).unwrap();
    });
}

#[test]
fn the_gate_opens_by_itself_after_its_time() {
    in_new_namespace(|| async {
        let mut machine = Machine::start();
        let node = kat_types::machine::network::NodeNetwork {
            hold_seconds: 1,
            ..super::namespaced_machine::node()
        };
        super::namespaced_machine::write(machine.folder.path(), "node.json", &node);
        machine.instance("web-aaaaa", UID, 10, StartGate::Hold);
        let container = machine.container(UID, "web-aaaaa");
        let start = Instant::now();
        machine
            .hook(UID, "web-aaaaa", container.pid())
            .await
            .unwrap();
        assert!(start.elapsed() >= Duration::from_secs(1));
    });
}

/// Collects the log lines written on this thread.
#[derive(Clone, Default)]
struct Lines(std::sync::Arc<parking_lot::Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Lines {
    fn about(&self, uid: u32) -> usize {
        let text = String::from_utf8(self.0.lock().clone()).unwrap();
        let user = format!("uid={uid}");
        text.lines().filter(|line| line.contains(&user)).count()
    }
}

#[test]
fn a_user_who_is_refused_without_end_does_not_fill_the_journal() {
    in_new_namespace(|| async {
        let mut machine = Machine::start();
        machine.instance("web-aaaaa", UID, 10, StartGate::Closed);
        machine.instance("web-bbbbb", OTHER, 11, StartGate::Open);
        let written = Lines::default();
        let lines = written.clone();
        // The server runs on this thread, so this subscriber receives its lines.
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_writer(move || lines.clone())
            .finish();
        let _guard = tracing::subscriber::set_default(subscriber);
        let socket = machine.socket();
        let refused = as_user(UID, move || {
            let call = || {
                let mut stream = UnixStream::connect(&socket).unwrap();
                writeln!(stream, "{{\"instance\":\"web-bbbbb\",\"pid\":4711}}").unwrap();
                let mut answer = String::new();
                stream.read_to_string(&mut answer).unwrap();
                answer.contains("has no instance")
            };
            (0..500).filter(|_| call()).count()
        });
        assert_eq!(refused.await, 500, "each is answered all the same");
        assert_eq!(written.about(UID), 50);
        let container = machine.container(OTHER, "web-bbbbb");
        machine
            .hook(OTHER, "web-bbbbb", container.pid())
            .await
            .unwrap();
        assert_eq!(written.about(OTHER), 1, "others have their own");
    });
}

#[test]
fn broken_and_slow_callers_are_refused() {
    in_new_namespace(|| async {
        let mut machine = Machine::start();
        machine.instance("web-aaaaa", UID, 10, StartGate::Open);
        for (sent, expected) in [
            ("\n".to_owned(), "malformed"),
            ("{\"instance\":\"web-aaaaa\"".to_owned(), "malformed"),
            (" ".repeat(5000), "longer than 4096"),
            (String::new(), "malformed"),
        ] {
            let socket = machine.socket();
            let answer = as_user(UID, move || {
                let mut stream = UnixStream::connect(socket).unwrap();
                let _ = stream.write_all(sent.as_bytes());
                let _ = stream.shutdown(std::net::Shutdown::Write);
                let mut answer = String::new();
                let _ = stream.read_to_string(&mut answer);
                answer
            })
            .await;
            assert!(answer.contains(expected), "{answer}");
        }
        let socket = machine.socket();
        let (answer, waited) = as_user(UID, move || {
            let mut stream = UnixStream::connect(socket).unwrap();
            stream
                .set_read_timeout(Some(Duration::from_secs(15)))
                .unwrap();
            let start = Instant::now();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            (answer, start.elapsed())
        })
        .await;
        assert!(answer.contains("no request within 5 s"), "{answer}");
        assert!(waited < Duration::from_secs(10));
    });
}

#[test]
fn the_sweep_takes_marked_leftovers_only() {
    in_new_namespace(|| async {
        let mut machine = Machine::start();
        machine.instance("web-aaaaa", UID, 10, StartGate::Open);
        machine.instance("web-bbbbb", UID, 11, StartGate::Open);
        let first = machine.container(UID, "web-aaaaa");
        let second = machine.container(UID, "web-bbbbb");
        machine.hook(UID, "web-aaaaa", first.pid()).await.unwrap();
        machine.hook(UID, "web-bbbbb", second.pid()).await.unwrap();
        run("ip link add katsomeone type veth peer name other0");
        run("ip link set katsomeone alias not-kats");
        machine.forget("web-aaaaa");
        eventually("the list is read", async || {
            machine.attachments.restore_all().await.unwrap().attached == 1
        })
        .await;
        let mut left = kat_links();
        left.sort();
        let mut expected = vec![attach::host_link_name("web-bbbbb"), "katsomeone".into()];
        expected.sort();
        assert_eq!(left, expected);
    });
}

#[test]
fn an_instance_that_was_attached_since_the_list_was_read_keeps_its_link() {
    in_new_namespace(|| async {
        let mut machine = Machine::start();
        machine.instance("web-aaaaa", UID, 10, StartGate::Open);
        let first = machine.container(UID, "web-aaaaa");
        machine.hook(UID, "web-aaaaa", first.pid()).await.unwrap();
        // A round that starts now uses the list as it is now.
        let attachments = machine.attachments_by_the_list_of_now();
        let address = machine.instance("web-bbbbb", UID, 11, StartGate::Open);
        let second = machine.container(UID, "web-bbbbb");
        second.serve(80);
        machine.hook(UID, "web-bbbbb", second.pid()).await.unwrap();
        attachments.restore_all().await.unwrap();
        assert_eq!(kat_links().len(), 2);
        fetch((address, 80).into()).unwrap();
    });
}

#[test]
fn a_container_that_runs_without_its_link_is_attached_again() {
    in_new_namespace(|| async {
        let mut machine = Machine::start();
        let address = machine.instance("web-aaaaa", UID, 10, StartGate::Open);
        let container = machine.container(UID, "web-aaaaa");
        container.serve(80);
        machine
            .hook(UID, "web-aaaaa", container.pid())
            .await
            .unwrap();
        let name = attach::host_link_name("web-aaaaa");
        run(&format!("ip link del {name}"));
        assert!(fetch((address, 80).into()).is_err(), "the control");
        let kept = machine.attachments.restore_all().await.unwrap();
        assert_eq!((kept.attached, kept.without.len()), (1, 0));
        fetch((address, 80).into()).unwrap();
        // While the gate is not open, only the hook attaches containers.
        run(&format!("ip link del {name}"));
        machine.instance("web-aaaaa", UID, 10, StartGate::Hold);
        eventually("the list is read", async || {
            machine.attachments.restore_all().await.unwrap().attached == 0
        })
        .await;
        assert_eq!(kat_links(), Vec::<String>::new());
    });
}

#[test]
fn a_process_that_is_not_the_instances_is_not_attached_in_its_place() {
    in_new_namespace(|| async {
        let mut machine = Machine::start();
        machine.instance("web-aaaaa", UID, 10, StartGate::Open);
        machine.instance("web-bbbbb", UID, 11, StartGate::Open);
        // The unit's control group has a process whose network namespace belongs to another user.
        let planted = Container::start(OTHER);
        machine.claim(planted.pid(), UID, "web-aaaaa");
        eventually("the list is read", async || {
            let kept = machine.attachments.restore_all().await.unwrap();
            let why = kept.without.get("web-aaaaa").cloned().unwrap_or_default();
            // The other instance has no process.
            why.contains("belongs to uid 20002") && kept.without.len() == 1 && kept.attached == 0
        })
        .await;
        assert_eq!(kat_links(), Vec::<String>::new());
    });
}

#[test]
fn a_taken_name_is_left_alone() {
    in_new_namespace(|| async {
        let mut machine = Machine::start();
        machine.instance("web-aaaaa", UID, 10, StartGate::Open);
        let name = attach::host_link_name("web-aaaaa");
        run(&format!("ip link add {name} type veth peer name other0"));
        let container = machine.container(UID, "web-aaaaa");
        let error = machine
            .hook(UID, "web-aaaaa", container.pid())
            .await
            .unwrap_err();
        assert!(error.contains("exists and is not of instance"), "{error}");
        assert_eq!(kat_links(), [name]);
    });
}

#[test]
fn a_failure_half_way_leaves_nothing() {
    in_new_namespace(|| async {
        let machine = Machine::start();
        let container = Container::start(UID);
        // The pair can be made, but its alias is longer than the kernel permits.
        let mut wanted = attach::Attachment {
            instance: "a".repeat(300),
            address: "10.90.1.10".parse().unwrap(),
            gateway: ADDRESS,
            mtu: 1420,
            has_host_ports: false,
        };
        let error = attach::attach(&machine.links, &container.namespace(), &wanted)
            .await
            .unwrap_err();
        assert!(error.to_string().starts_with("mark link"), "{error}");
        assert_eq!(kat_links(), Vec::<String>::new());
        wanted.instance.truncate(40);
        attach::attach(&machine.links, &container.namespace(), &wanted)
            .await
            .unwrap();
        assert_eq!(kat_links().len(), 1);
    });
}

/// Many users of the machine without an instance call the hook at once.
#[test]
fn strangers_wait_for_each_other_and_hold_up_nobody_else() {
    in_new_namespace(|| async {
        let mut machine = Machine::start();
        machine.instance("web-aaaaa", UID, 10, StartGate::Open);
        let calls: Vec<_> = (30_000..30_200)
            .map(|uid| tokio::spawn(machine.hook(uid, "web-aaaaa", 4711)))
            .collect();
        // Gives the server time to receive the calls.
        tokio::time::sleep(Duration::from_millis(100)).await;
        let begin = Instant::now();
        let container = machine.container(UID, "web-aaaaa");
        machine
            .hook(UID, "web-aaaaa", container.pid())
            .await
            .unwrap();
        assert!(
            begin.elapsed() < Duration::from_secs(2),
            "{:?}",
            begin.elapsed()
        );
        let mut counts = [0, 0];
        for call in calls {
            let error = call.await.unwrap().unwrap_err();
            let few = error.contains("has no instance on this machine");
            assert!(few || error.contains("are waiting already"), "{error}");
            counts[usize::from(few)] += 1;
        }
        assert!(counts[0] > 0, "so many were not met at once: {counts:?}");
        // Many calls of one such user do not use up the places of others.
        let calls: Vec<_> = (0..100)
            .map(|_| tokio::spawn(machine.hook(40_000, "web-aaaaa", 4711)))
            .collect();
        tokio::time::sleep(Duration::from_millis(100)).await;
        let error = machine.hook(40_001, "web-aaaaa", 4711).await.unwrap_err();
        assert!(error.contains("has no instance on this machine"), "{error}");
        for call in calls {
            call.await.unwrap().unwrap_err();
        }
        // An instance added just now is found, even though the files were read a moment ago.
        machine.instance("web-bbbbb", OTHER, 11, StartGate::Open);
        let next = machine.container(OTHER, "web-bbbbb");
        machine.hook(OTHER, "web-bbbbb", next.pid()).await.unwrap();
    });
}

#[test]
fn an_instance_with_a_deadline_starts_only_before_it() {
    in_new_namespace(|| async {
        let mut machine = Machine::start();
        machine.instance("web-aaaaa", UID, 10, StartGate::Open);
        machine.limit("web-aaaaa", UID);
        let container = machine.container(UID, "web-aaaaa");
        let refusal = machine.hook(UID, "web-aaaaa", container.pid()).await;
        let refusal = refusal.unwrap_err();
        assert!(refusal.contains("kat-agent has not confirmed"), "{refusal}");
        machine.allow_until("web-aaaaa", later(Duration::from_secs(60)));
        machine
            .hook(UID, "web-aaaaa", container.pid())
            .await
            .unwrap();
        machine.allow_until("web-aaaaa", later(Duration::ZERO));
        let refusal = machine.hook(UID, "web-aaaaa", container.pid()).await;
        assert!(refusal.is_err());
    });
}

/// Its hook asks only whether it may start; no process is looked at, and no link is made.
#[test]
fn an_instance_on_the_machines_network_with_a_deadline_is_asked_for_too() {
    in_new_namespace(|| async {
        let mut machine = Machine::start();
        machine.limit("web-aaaaa", UID);
        let container = Container::on_host_network(UID);
        let ask = |uid| machine.hook(uid, "web-aaaaa", container.pid());
        assert!(ask(UID).await.is_err(), "it has no deadline");
        machine.allow_until("web-aaaaa", later(Duration::from_secs(60)));
        ask(UID).await.unwrap();
        let refusal = ask(OTHER).await.unwrap_err();
        assert!(refusal.contains("no instance"), "{refusal}");
        assert_eq!(kat_links(), Vec::<String>::new());
    });
}

/// A user can move none of its deadlines, and can name no process of another user's unit.
#[test]
fn a_deadline_kills_the_processes_of_its_own_units_alone() {
    in_new_namespace(|| async {
        let mut machine = Machine::start();
        machine.limit("web-aaaaa", UID);
        let (own, other) = (
            machine.container(UID, "web-aaaaa"),
            machine.container(OTHER, "web-bbbbb"),
        );
        machine.allow_until("web-aaaaa", later(Duration::ZERO));
        eventually("it is killed", async || {
            machine.fence.end_overdue().await;
            own.has_ended()
        })
        .await;
        assert!(!other.has_ended());
        let file = machine.folder.path().join("deadlines.json");
        let denied = as_user(UID, move || {
            (std::fs::write(&file, "{}"), std::fs::remove_file(&file))
        })
        .await;
        assert!(denied.0.is_err() && denied.1.is_err());
    });
}

fn later(time: Duration) -> BootTime {
    BootTime::from(kat_daemon::clock::since_boot()).after(time)
}
