//! A machine in its own network namespace, with containers of other users.

use std::{
    collections::BTreeMap,
    future::Future,
    io::{self, Read, Write},
    net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use rustix::net::{
    self, AddressFamily, SocketFlags, SocketType,
    sockopt::{self, Timeout},
};
use tokio_util::sync::CancellationToken;

use kat_daemon::{clock, watchdog::LoopPulses};
use kat_network::{
    containers::{
        attachments::Attachments,
        fence::{DeadlineFence, FenceSources},
        hook_server::HookServer,
        namespaces::NetworkNamespace,
        unit_processes::UnitProcesses,
        verify::CgroupReader,
    },
    hook,
    links::Links,
    nftables::firewall::FirewallInput,
    state_files::StateFiles,
};
use kat_types::machine::{
    fence::{BootTime, RunDeadlines},
    network::{FencedInstance, InstanceNetwork, Instances, NodeNetwork, StartGate},
};

/// Runs `work` in a new network namespace, with a runtime of its own.
pub(crate) fn in_new_namespace<F: Future<Output = ()>>(work: impl FnOnce() -> F + Send + 'static) {
    let thread = std::thread::spawn(move || {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET)
            .expect("these tests need root: a network namespace");
        run("ip link set lo up");
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
            .block_on(work());
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

/// Runs a command line (words split at blanks) in the calling thread's namespace.
pub(crate) fn run(line: &str) -> String {
    let mut words = line.split_whitespace();
    let output = Command::new(words.next().unwrap())
        .args(words)
        .output()
        .unwrap_or_else(|error| panic!("{line}: {error}"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{line}: {text}{errors}");
    text
}

/// Waits for a condition with a deadline of ten seconds.
pub(crate) async fn eventually(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !condition().await {
        assert!(Instant::now() < deadline, "not within 10 s: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// A process in its own user and network namespaces, like a container.
pub(crate) struct Container(Child);

impl Container {
    /// Starts the process as `uid` and waits until it is in its namespaces.
    pub(crate) fn start(uid: u32) -> Self {
        Self::spawn(
            uid,
            &["unshare", "--user", "--map-root-user", "--net"],
            true,
        )
    }

    /// A process of `uid` in the machine's own network namespace.
    pub(crate) fn on_host_network(uid: u32) -> Self {
        Self::spawn(uid, &[], false)
    }

    fn spawn(uid: u32, wrapper: &[&str], apart: bool) -> Self {
        let child = Command::new("setpriv")
            .args([
                format!("--reuid={uid}"),
                format!("--regid={uid}"),
                "--clear-groups".into(),
            ])
            .args(wrapper)
            .args(["sleep", "300"])
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let container = Self(child);
        let deadline = Instant::now() + Duration::from_secs(10);
        let ready = || {
            let own = NetworkNamespace::own().unwrap();
            let name = std::fs::read_to_string(format!("/proc/{}/comm", container.pid())).unwrap();
            name.trim() == "sleep" && container.namespace().is_same(&own) != apart
        };
        while !ready() {
            assert!(Instant::now() < deadline, "a container did not start");
            std::thread::sleep(Duration::from_millis(5));
        }
        container
    }

    pub(crate) fn pid(&self) -> i32 {
        self.0.id().try_into().unwrap()
    }

    /// Whether it has ended, and nobody has waited for it yet.
    pub(crate) fn has_ended(&self) -> bool {
        let status = std::fs::read_to_string(format!("/proc/{}/stat", self.pid())).unwrap();
        status.contains(") Z ")
    }

    pub(crate) fn namespace(&self) -> NetworkNamespace {
        NetworkNamespace::of(self.pid()).unwrap()
    }

    /// Connects from inside and returns the first bytes that the other side sends.
    pub(crate) async fn fetch(&self, address: SocketAddr) -> io::Result<String> {
        fetch_in(self.namespace(), address).await
    }

    /// Serves on `port` inside and greets each caller with the caller's address.
    pub(crate) fn serve(&self, port: u16) {
        serve_in(&self.namespace(), port);
    }

    pub(crate) fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        self.end();
    }
}

/// Connects from inside a namespace, within a second, and returns what the other side sends.
pub(crate) async fn fetch_in(
    namespace: NetworkNamespace,
    address: SocketAddr,
) -> io::Result<String> {
    tokio::task::spawn_blocking(move || namespace.run(|| fetch(address)))
        .await
        .unwrap()?
}

/// Connects from this port in the calling thread's namespace, within a second; what times out is
/// "in progress".
pub(crate) fn connect_from(port: u16, address: SocketAddrV4) -> io::Result<TcpStream> {
    let socket = net::socket_with(
        AddressFamily::INET,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    for way in [Timeout::Send, Timeout::Recv] {
        sockopt::set_socket_timeout(&socket, way, Some(Duration::from_secs(1)))?;
    }
    net::bind(&socket, &SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, port))?;
    net::connect(&socket, &address)?;
    Ok(socket.into())
}

/// Connects from the calling thread's namespace.
pub(crate) fn fetch(address: SocketAddr) -> io::Result<String> {
    let limit = Duration::from_secs(1);
    let mut stream = TcpStream::connect_timeout(&address, limit)?;
    stream.set_read_timeout(Some(limit))?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

/// Greets each caller with the caller's address, on a thread that runs until the test process ends.
pub(crate) fn serve_in(namespace: &NetworkNamespace, port: u16) {
    let listener = namespace
        .run(|| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)))
        .unwrap()
        .unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { continue };
            let caller = stream.peer_addr().unwrap().ip().to_string();
            let _ = stream.write_all(caller.as_bytes());
        }
    });
}

/// A machine: its files, its hook server, and the control groups that its processes claim to have.
pub(crate) struct Machine {
    pub folder: tempfile::TempDir,
    pub links: Links,
    pub instances: Instances,
    pub cgroups: Arc<Mutex<BTreeMap<i32, String>>>,
    pub attachments: Arc<Attachments>,
    pub fence: Arc<DeadlineFence>,
    files: Arc<StateFiles>,
    cancel: CancellationToken,
    /// Ends the server.
    stop: CancellationToken,
}

pub(crate) const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 90, 1, 1);

pub(crate) fn node() -> NodeNetwork {
    NodeNetwork {
        schema: 1,
        node: "n1".into(),
        cluster_cidr: "10.90.0.0/16".parse().unwrap(),
        service_cidr: "10.91.0.0/16".parse().unwrap(),
        subnet: "10.90.1.0/24".parse().unwrap(),
        address: ADDRESS,
        cluster_domain: "cluster.local".into(),
        wireguard_port: 51820,
        mtu: 1420,
        upstream_dns: Vec::new(),
        control_ports: kat_types::machine::network::control_ports(),
        api_port: None,
        hold_seconds: 30,
        relay: false,
    }
}

pub(crate) fn nobody() -> FirewallInput {
    FirewallInput::default()
}

impl Machine {
    /// Serves the hook in the current namespace. The machine's address is on `lo` instead of
    /// `kat0`.
    pub(crate) fn start() -> Self {
        run(&format!("ip address add {ADDRESS}/32 dev lo"));
        let folder = tempfile::tempdir().unwrap();
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        write(folder.path(), "node.json", &node());
        let files = StateFiles::open(folder.path());
        let links = Links::open().unwrap();
        let cancel = CancellationToken::new();
        tokio::spawn(Arc::clone(&files).watch(cancel.clone()));
        let cgroups: Arc<Mutex<BTreeMap<i32, String>>> = Arc::default();
        let attachments = Attachments::new(
            Arc::clone(&files),
            links.clone(),
            reader(&cgroups),
            processes(&cgroups),
        );
        let fence = DeadlineFence::new(FenceSources {
            files: Arc::clone(&files),
            deadlines: folder.path().join("deadlines.json"),
            journal: folder.path().join("no-journal"),
            clock: Arc::new(|| BootTime::from(clock::since_boot())),
            cgroups: reader(&cgroups),
            processes: processes(&cgroups),
        });
        let mut machine = Self {
            folder,
            links,
            instances: Instances {
                schema: 1,
                ..Instances::default()
            },
            cgroups,
            attachments,
            fence,
            files,
            cancel,
            stop: CancellationToken::new(),
        };
        machine.serve_hook();
        machine
    }

    /// Serves the hook's socket, in place of a server that has stopped.
    pub(crate) fn serve_hook(&mut self) {
        let next = self.folder.path().join("next.sock");
        let listener = tokio::net::UnixListener::bind(&next).unwrap();
        std::fs::set_permissions(&next, std::fs::Permissions::from_mode(0o666)).unwrap();
        std::fs::rename(next, self.socket()).unwrap();
        let server = HookServer::new(
            Arc::clone(&self.files),
            Arc::clone(&self.attachments),
            Arc::clone(&self.fence),
            tokio::sync::watch::Sender::default().subscribe(),
        );
        self.stop = self.cancel.child_token();
        let pulse = LoopPulses::default().watch("the hook's socket");
        tokio::spawn(server.serve(listener, pulse, self.stop.clone()));
    }

    /// Stops the server of the hook's socket, with its calls in progress.
    pub(crate) fn stop_hook(&self) {
        self.stop.cancel();
    }

    /// Adds or changes an instance and writes the file.
    pub(crate) fn instance(&mut self, name: &str, uid: u32, host: u8, gate: StartGate) -> Ipv4Addr {
        let address = Ipv4Addr::new(10, 90, 1, host);
        let instance = InstanceNetwork {
            namespace: "default".into(),
            workload: "web".into(),
            uid,
            unit: format!("kat-default-{name}.service"),
            address,
            gate,
            host_ports: Vec::new(),
            machine_access: Default::default(),
        };
        self.instances.instances.insert(name.into(), instance);
        write(self.folder.path(), "instances.json", &self.instances);
        address
    }

    /// Marks an instance as one that runs only before its deadline, and writes the file.
    pub(crate) fn limit(&mut self, name: &str, uid: u32) {
        let fenced = FencedInstance {
            uid,
            units: vec![format!("kat-default-{name}.service")],
        };
        self.instances.fenced.insert(name.into(), fenced);
        write(self.folder.path(), "instances.json", &self.instances);
    }

    /// Writes the deadline of an instance, in the file of the agent, and that of no other.
    pub(crate) fn allow_until(&self, name: &str, deadline: BootTime) {
        let deadlines = RunDeadlines {
            schema: 1,
            deadlines: [(name.to_owned(), deadline)].into(),
        };
        write(self.folder.path(), "deadlines.json", &deadlines);
    }

    /// A second set of attachments that has read the present list, and keeps it until it reads the
    /// files again.
    pub(crate) fn attachments_by_the_list_of_now(&self) -> Arc<Attachments> {
        let (reader, processes) = (reader(&self.cgroups), processes(&self.cgroups));
        let files = StateFiles::open(self.folder.path());
        Attachments::new(files, self.links.clone(), reader, processes)
    }

    /// Removes an instance from the list.
    pub(crate) fn forget(&mut self, name: &str) {
        self.instances.instances.remove(name);
        write(self.folder.path(), "instances.json", &self.instances);
    }

    /// Makes a process appear to be in the unit of an instance.
    pub(crate) fn claim(&self, pid: i32, uid: u32, instance: &str) {
        let path = format!(
            "/user.slice/user-{uid}.slice/user@{uid}.service/app.slice/kat-default-{instance}.service/libpod-payload-0"
        );
        self.cgroups.lock().insert(pid, path);
    }

    /// Starts a container of an instance in its unit.
    pub(crate) fn container(&self, uid: u32, instance: &str) -> Container {
        let container = Container::start(uid);
        self.claim(container.pid(), uid, instance);
        container
    }

    /// Runs the real hook program's code as `uid`.
    pub(crate) fn hook(
        &self,
        uid: u32,
        instance: &str,
        pid: i32,
    ) -> impl Future<Output = Result<(), String>> + use<> {
        let options = hook::HookOptions {
            socket: self.socket(),
            journal: self.folder.path().join("no-journal"),
            cgroup: "/proc/self/cgroup".into(),
            timeout: Duration::from_secs(20),
        };
        let state = format!(
            r#"{{"ociVersion":"1.0.2","id":"c","status":"created","pid":{pid},"bundle":"/",
            "annotations":{{"rip.dws.kat.instance":"{instance}"}}}}"#
        );
        as_user(uid, move || {
            hook::run(state.as_bytes(), &options).map_err(|error| error.to_string())
        })
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.path().join("net.sock")
    }
}

/// Reads control groups from the test's table.
fn reader(known: &Arc<Mutex<BTreeMap<i32, String>>>) -> CgroupReader {
    let known = Arc::clone(known);
    Arc::new(move |pid| {
        let known = known.lock();
        Ok(known.get(&pid).cloned().unwrap_or_else(|| "/".into()))
    })
}

/// Finds the processes that claim to be in a unit, whatever their user.
fn processes(known: &Arc<Mutex<BTreeMap<i32, String>>>) -> UnitProcesses {
    let known = Arc::clone(known);
    Arc::new(move |_, unit| {
        let known = known.lock();
        let within = known.iter().filter(|(_, path)| path.contains(unit));
        Ok(within.map(|(pid, _)| *pid).collect())
    })
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}

/// Runs `work` on a thread that has the rights of `uid`.
pub(crate) async fn as_user<T: Send + 'static>(
    uid: u32,
    work: impl FnOnce() -> T + Send + 'static,
) -> T {
    let (sender, receiver) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        let uid = rustix::process::Uid::from_raw(uid);
        rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
        let _ = sender.send(work());
    });
    receiver.await.unwrap()
}

/// Replaces a file of the agent's as the agent does.
pub(crate) fn write(folder: &Path, name: &str, value: &impl serde::Serialize) {
    let partial = folder.join(format!(".{name}"));
    std::fs::write(&partial, serde_json::to_vec(value).unwrap()).unwrap();
    std::fs::rename(partial, folder.join(name)).unwrap();
}
