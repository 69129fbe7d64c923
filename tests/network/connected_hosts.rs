//! Machines on threads, connected by virtual cables and userspace WireGuard.

use std::{
    net::{Ipv4Addr, SocketAddr},
    os::unix::{fs::PermissionsExt, net::UnixListener},
    path::PathBuf,
    sync::{Arc, mpsc},
    time::Duration,
};

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::runtime::{Builder, Handle};
use tokio_util::sync::CancellationToken;

use super::namespaced_machine::{Container, as_user, fetch_in, node, run, write};
use kat_daemon::watchdog::LoopPulses;
use kat_network as network;
use kat_network::{
    containers::{
        namespaces::NetworkNamespace, unit_processes::UnitProcesses, verify::CgroupReader,
    },
    dns::resolved::SendAnnouncement,
    links::Links,
    overlay::{
        kat0::{OverlayLink, StartUserspace},
        wireguard::{PrivateKey, Uapi, WireGuard, generate_key, userspace},
    },
    service::{self, NetworkServiceConfig},
};
use kat_types::machine::network::{
    InstanceNetwork, Instances, NodeNetwork, PeerMachine, PeerMachines, StartGate,
};

pub(crate) const UID: u32 = 20001;

/// Runs userspace WireGuard in the same namespace, in place of `kat-wg.service`.
pub(crate) struct InProcess {
    pub socket: PathBuf,
    pub cancel: CancellationToken,
    pub started: Mutex<Vec<CancellationToken>>,
    pub pulses: LoopPulses,
}

#[async_trait]
impl StartUserspace for InProcess {
    async fn start(&self) -> Result<(), String> {
        let (socket, cancel) = (self.socket.clone(), self.cancel.child_token());
        let pulses = self.pulses.clone();
        self.started.lock().push(cancel.clone());
        tokio::spawn(async move {
            userspace::serve("kat0", &socket, &pulses, cancel, || ())
                .await
                .unwrap();
        });
        Ok(())
    }
}

/// A machine on its own thread, with its own network namespace and runtime.
pub(crate) struct Host {
    pub number: u8,
    pub folder: tempfile::TempDir,
    pub namespace: NetworkNamespace,
    pub handle: Handle,
    pub end: CancellationToken,
    pub thread: Option<std::thread::JoinHandle<()>>,
    pub key: PrivateKey,
    pub starter: Arc<InProcess>,
    pub claimed: Arc<Mutex<Vec<(i32, String)>>>,
    /// Called in place of systemd-resolved where set.
    pub resolved: Option<SendAnnouncement>,
}

impl Host {
    pub(crate) fn start(number: u8) -> Self {
        let (sender, receiver) = mpsc::channel();
        let end = CancellationToken::new();
        let stop = end.clone();
        let thread = std::thread::spawn(move || {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
            run("ip link set lo up");
            std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap();
            let runtime = Builder::new_current_thread().enable_all().build().unwrap();
            let namespace = NetworkNamespace::own().unwrap();
            sender.send((namespace, runtime.handle().clone())).unwrap();
            runtime.block_on(stop.cancelled());
        });
        let (namespace, handle) = receiver.recv().unwrap();
        let folder = tempfile::tempdir().unwrap();
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let key = generate_key().unwrap();
        std::fs::write(folder.path().join("wireguard.key"), key.to_base64()).unwrap();
        let starter = Arc::new(InProcess {
            socket: folder.path().join("wireguard/kat0.sock"),
            cancel: end.clone(),
            started: Mutex::default(),
            pulses: LoopPulses::stalled_after(userspace::STALLED),
        });
        let host = Self {
            number,
            folder,
            namespace,
            handle,
            end,
            thread: Some(thread),
            key,
            starter,
            claimed: Arc::default(),
            resolved: None,
        };
        host.write("node.json", &host.node());
        host
    }

    pub(crate) fn node(&self) -> NodeNetwork {
        NodeNetwork {
            node: format!("n{}", self.number),
            subnet: format!("10.90.{}.0/24", self.number).parse().unwrap(),
            address: self.address(1),
            ..node()
        }
    }

    pub(crate) fn address(&self, last: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, 90, self.number, last)
    }

    pub(crate) fn write(&self, name: &str, value: &impl serde::Serialize) {
        write(self.folder.path(), name, value);
    }

    pub(crate) fn command(&self, line: &str) -> String {
        self.namespace.run(|| run(line)).unwrap()
    }

    pub(crate) fn namespace(&self) -> NetworkNamespace {
        let (sender, receiver) = mpsc::channel();
        self.namespace
            .run(|| sender.send(NetworkNamespace::own().unwrap()).unwrap())
            .unwrap();
        receiver.recv().unwrap()
    }

    /// This machine as other machines have it in `peers.json`.
    pub(crate) fn as_peer(&self, endpoints: &[&str]) -> PeerMachine {
        PeerMachine {
            public_key: self.key.public().to_string(),
            endpoints: endpoints.iter().map(|text| (*text).to_owned()).collect(),
            subnet: self.node().subnet,
            keepalive: 1,
            via: None,
        }
    }

    /// Drops all announcements that reach this machine.
    pub(crate) fn deafen(&self) {
        self.command("nft add table inet deaf");
        self.command("nft add chain inet deaf in { type filter hook input priority 0 ; }");
        self.command("nft add rule inet deaf in udp dport 9117 drop");
    }

    pub(crate) async fn fetches(&self, address: Ipv4Addr) -> bool {
        fetch_in(self.namespace(), (address, 8080).into())
            .await
            .is_ok()
    }

    /// The endpoint that this machine's WireGuard has for another machine.
    pub(crate) async fn endpoint_of(&self, other: &Self) -> Option<SocketAddr> {
        let device = self.wireguard().read().await.ok()?;
        device.peers.get(&other.key.public())?.endpoint
    }

    pub(crate) fn set_peers(&self, peers: &[(&str, PeerMachine)]) {
        let peers = peers
            .iter()
            .map(|(name, peer)| ((*name).to_owned(), peer.clone()))
            .collect();
        self.write("peers.json", &PeerMachines { schema: 1, peers });
    }

    pub(crate) fn set_instances(&self, names: &[(&str, u8)]) {
        let instance = |host: u8, name: &str| InstanceNetwork {
            namespace: "default".into(),
            workload: "web".into(),
            uid: UID,
            unit: format!("kat-default-{name}.service"),
            address: self.address(host),
            gate: StartGate::Open,
            host_ports: Vec::new(),
            machine_access: Default::default(),
        };
        let instances = names
            .iter()
            .map(|(name, host)| ((*name).to_owned(), instance(*host, name)))
            .collect();
        self.write(
            "instances.json",
            &Instances {
                schema: 1,
                instances,
                ..Instances::default()
            },
        );
    }

    /// Runs the service until the returned token is cancelled.
    pub(crate) fn serve(&self) -> (CancellationToken, tokio::task::JoinHandle<()>) {
        let cancel = CancellationToken::new();
        let claimed = Arc::clone(&self.claimed);
        let cgroups: CgroupReader = Arc::new(move |pid| {
            let claimed = claimed.lock();
            let found = claimed.iter().find(|(known, _)| *known == pid);
            Ok(found.map_or("/".into(), |(_, path)| path.clone()))
        });
        let claimed = Arc::clone(&self.claimed);
        let processes: UnitProcesses = Arc::new(move |_, unit| {
            let claimed = claimed.lock();
            let within = claimed.iter().filter(|(_, path)| path.contains(unit));
            Ok(within.map(|(pid, _)| *pid).collect())
        });
        let resolved = self.resolved.clone();
        let socket = self.socket();
        let _ = std::fs::remove_file(&socket);
        let listener = UnixListener::bind(&socket).unwrap();
        std::fs::set_permissions(&socket, std::fs::Permissions::from_mode(0o666)).unwrap();
        let (folder, stop) = (self.folder.path().to_owned(), cancel.clone());
        let report = self.isolation_report();
        let (addresses, release) = (self.address_report(), self.folder.path().join("until.json"));
        let starter = Arc::clone(&self.starter);
        let task = self.handle.spawn(async move {
            let userspace = starter.socket.clone();
            let overlay = OverlayLink::with_userspace(Links::open().unwrap(), starter, userspace);
            let config = NetworkServiceConfig {
                deadlines: folder.join("deadlines.json"),
                folder,
                root: None,
                listener: Some(listener),
                cgroups,
                processes,
                overlay: Some(overlay),
                dns: None,
                resolved,
                report: None,
                isolation_report: Some(report),
                address_report: Some(addresses),
                address_release: release,
                cancel: stop,
            };
            service::run(config).await.unwrap();
        });
        (cancel, task)
    }

    /// Where `kat-net` reports the state of isolation.
    pub(crate) fn isolation_report(&self) -> PathBuf {
        self.folder.path().join("reported-isolation.json")
    }

    /// Where `kat-net` reports the state of virtual addresses.
    pub(crate) fn address_report(&self) -> PathBuf {
        self.folder.path().join("reported-addresses.json")
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.path().join("net.sock")
    }

    pub(crate) fn wireguard(&self) -> Uapi {
        Uapi::new(&self.starter.socket)
    }

    /// Starts a container of an instance and calls the hook for it.
    pub(crate) async fn container(&self, instance: &str) -> Container {
        let container = Container::start(UID);
        let path = format!(
            "/user.slice/user-{UID}.slice/user@{UID}.service/app.slice/kat-default-{instance}.service"
        );
        self.claimed.lock().push((container.pid(), path));
        self.hook(instance, container.pid()).await.unwrap();
        container
    }

    pub(crate) async fn hook(&self, instance: &str, pid: i32) -> Result<(), String> {
        let options = network::hook::HookOptions {
            socket: self.socket(),
            journal: "/nowhere".into(),
            cgroup: "/proc/self/cgroup".into(),
            timeout: Duration::from_secs(20),
        };
        let state =
            format!(r#"{{"pid":{pid},"annotations":{{"rip.dws.kat.instance":"{instance}"}}}}"#);
        as_user(UID, move || {
            network::hook::run(state.as_bytes(), &options).map_err(|error| error.to_string())
        })
        .await
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.end.cancel();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Two machines with a cable between them: 192.0.2.1 and 192.0.2.2.
pub(crate) fn pair() -> (Host, Host) {
    let (one, two) = (Host::start(1), Host::start(2));
    cable("cable0", [(&one, "192.0.2.1"), (&two, "192.0.2.2")]);
    (one, two)
}

/// Connects two machines.
pub(crate) fn cable(name: &str, [one, two]: [(&Host, &str); 2]) {
    // `ip link` identifies a namespace by a path or by a process.
    let holder = two.0.namespace.run(|| {
        std::process::Command::new("sleep")
            .arg("5")
            .spawn()
            .unwrap()
    });
    let mut holder = holder.unwrap();
    one.0.command(&format!(
        "ip link add {name} type veth peer name {name} netns {}",
        holder.id()
    ));
    let _ = holder.kill();
    let _ = holder.wait();
    for (host, address) in [one, two] {
        host.command(&format!(
            "ip address add {address}/24 broadcast + dev {name}"
        ));
        host.command(&format!("ip link set {name} up"));
    }
}

pub(crate) fn block_on(work: impl Future<Output = ()>) {
    Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
        .block_on(work);
}
