//! The D-Bus service on a private bus (`dbus-daemon`) with KAT's own policy. The tests need root,
//! because the policy distinguishes root from others.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader},
    os::unix::process::CommandExt,
    path::PathBuf,
    process::{Child, Command, Stdio},
};

use futures_util::StreamExt;
use tokio::time::timeout;
use zbus::{MatchRule, Message, MessageStream, OwnedVariant, message::Type};

use super::*;
use crate::UserBus;
use kat_testing::systemd::introspection::{Interfaces, parse};
use kat_types::VERSION;

const CONTRACT: &str = include_str!("../../../dbus/rip.dws.kat1.xml");
const POLICY: &str = include_str!("../../../dbus/rip.dws.kat1.conf");
const LIMIT: Duration = Duration::from_secs(5);
const NOBODY: u32 = 65534;
/// A group that exists on every machine, in place of `kat`.
const GROUP: (&str, u32) = ("daemon", 1);

/// A bus with the defaults of the system bus: everybody may connect, nobody may call anything.
struct Bus {
    daemon: Child,
    socket: PathBuf,
    _folder: tempfile::TempDir,
}

impl Bus {
    fn start() -> Self {
        assert!(
            rustix::process::geteuid().is_root(),
            "this test needs root, as contrib/test has it"
        );
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let policy = write(
            "kat.conf",
            &POLICY.replace("\"kat\"", &format!("\"{}\"", GROUP.0)),
        );
        let socket = folder.path().join("bus");
        let configuration = write(
            "bus.conf",
            &format!(
                "<busconfig><type>custom</type><listen>unix:path={}</listen>\
                 <auth>EXTERNAL</auth><policy context=\"default\"><allow user=\"*\"/>\
                 <deny own=\"*\"/><deny send_type=\"method_call\"/>\
                 <allow send_type=\"signal\"/>\
                 <allow send_requested_reply=\"true\" send_type=\"method_return\"/>\
                 <allow send_requested_reply=\"true\" send_type=\"error\"/>\
                 <allow receive_type=\"method_call\"/><allow receive_type=\"method_return\"/>\
                 <allow receive_type=\"error\"/><allow receive_type=\"signal\"/>\
                 <allow send_destination=\"org.freedesktop.DBus\"/></policy>\
                 <include>{}</include></busconfig>",
                socket.display(),
                policy.display()
            ),
        );
        Command::new("chmod")
            .arg("755")
            .arg(folder.path())
            .status()
            .unwrap();
        let mut daemon = Command::new("dbus-daemon")
            .args(["--nofork", "--nopidfile", "--print-address"])
            .arg(format!("--config-file={}", configuration.display()))
            .stdout(Stdio::piped())
            .spawn()
            .expect("dbus-daemon is needed (apt install dbus-daemon)");
        let mut line = String::new();
        BufReader::new(daemon.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        assert!(line.contains("unix:path="), "{line}");
        Self {
            daemon,
            socket,
            _folder: folder,
        }
    }

    async fn root(&self) -> Connection {
        UserBus::at(0, self.socket.clone()).connect().await.unwrap()
    }

    async fn serve(&self, state: watch::Receiver<Arc<PublishedState>>) -> Serving {
        let connection = self.root().await;
        let task = tokio::spawn(serve(connection, state));
        let client = self.root().await;
        let deadline = tokio::time::Instant::now() + LIMIT;
        let bus = zbus::fdo::DBusProxy::new(&client).await.unwrap();
        while !bus.name_has_owner(NAME.try_into().unwrap()).await.unwrap() {
            assert!(tokio::time::Instant::now() < deadline);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Serving { task, client }
    }

    /// Calls ListInstances with `dbus-send` as this user. Returns whether it was answered, and the
    /// output.
    fn call_as(&self, uid: u32, gid: u32) -> (bool, String) {
        let output = Command::new("dbus-send")
            .arg(format!("--bus=unix:path={}", self.socket.display()))
            .args(["--print-reply", &format!("--dest={NAME}"), PATH])
            .arg(format!("{MANAGER}.ListInstances"))
            .uid(uid)
            .gid(gid)
            .output()
            .expect("dbus-send is needed (apt install dbus-bin)");
        let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        (output.status.success(), text)
    }
}

impl Drop for Bus {
    fn drop(&mut self) {
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }
}

struct Serving {
    task: tokio::task::JoinHandle<Result<(), PublishError>>,
    client: Connection,
}

impl Serving {
    async fn call<B>(
        &self,
        path: &str,
        interface: &str,
        member: &str,
        body: &B,
    ) -> zbus::Result<Message>
    where
        B: serde::Serialize + zbus::wire::DynamicType,
    {
        self.client
            .call_method(Some(NAME), path, Some(interface), member, body)
            .await
    }

    async fn introspect(&self, path: &str) -> Interfaces {
        let reply = self
            .call(
                path,
                "org.freedesktop.DBus.Introspectable",
                "Introspect",
                &(),
            )
            .await
            .unwrap();
        let xml: String = reply.body().deserialize().unwrap();
        let mut found = parse(&xml).unwrap();
        found.retain(|name, _| name.starts_with("rip."));
        found
    }

    async fn properties(&self, path: &str, interface: &str) -> BTreeMap<String, OwnedVariant> {
        let reply = self
            .call(
                path,
                "org.freedesktop.DBus.Properties",
                "GetAll",
                &(interface,),
            )
            .await
            .unwrap();
        reply.body().deserialize().unwrap()
    }
}

fn state() -> PublishedState {
    let instance = PublishedInstance {
        namespace: "default".to_owned(),
        workload: "web".to_owned(),
        phase: "Starting".to_owned(),
        unit: "kat-default-web-ab12c.service".to_owned(),
        user: "kat-default-web".to_owned(),
        uid: 20_001,
        address: "10.100.0.5".to_owned(),
        image: "registry.example/web:1".to_owned(),
        generation: 3,
        health: "pending_check".to_owned(),
        ..PublishedInstance::default()
    };
    PublishedState {
        node: "n1".to_owned(),
        cluster: "home".to_owned(),
        status: "Ready".to_owned(),
        instances: BTreeMap::from([("web-ab12c".to_owned(), instance)]),
        ..PublishedState::default()
    }
}

#[tokio::test]
async fn what_is_served_is_the_contract() {
    let bus = Bus::start();
    let (_sender, receiver) = watch::channel(Arc::new(state()));
    let serving = bus.serve(receiver).await;
    let mut served = serving.introspect(PATH).await;
    served.extend(serving.introspect(&instance_path("web-ab12c")).await);
    assert_eq!(served, parse(CONTRACT).unwrap());
}

#[tokio::test]
async fn tells_the_node_and_its_instances() {
    let bus = Bus::start();
    let (sender, receiver) = watch::channel(Arc::new(state()));
    let serving = bus.serve(receiver).await;
    let node = serving.properties(PATH, MANAGER).await;
    assert_eq!(String::try_from(node["Node"].clone()).unwrap(), "n1");
    assert_eq!(String::try_from(node["Version"].clone()).unwrap(), VERSION);
    let reply = serving
        .call(PATH, MANAGER, "GetInstance", &("web-ab12c",))
        .await;
    let path: zbus::OwnedObjectPath = reply.unwrap().body().deserialize().unwrap();
    assert_eq!(path.as_str(), "/rip/dws/kat1/instance/web_2dab12c");
    let instance = serving.properties(path.as_str(), INSTANCE).await;
    assert_eq!(u32::try_from(instance["Uid"].clone()).unwrap(), 20_001);
    assert_eq!(u64::try_from(instance["Generation"].clone()).unwrap(), 3);
    let error = serving
        .call(PATH, MANAGER, "GetInstance", &("web-zzzzz",))
        .await
        .unwrap_err();
    assert!(error.to_string().contains("NoSuchInstance"), "{error}");
    let reply = serving
        .call(PATH, MANAGER, "ListInstances", &())
        .await
        .unwrap();
    type Row = (
        String,
        String,
        String,
        String,
        String,
        String,
        u32,
        zbus::OwnedObjectPath,
    );
    let rows: Vec<Row> = reply.body().deserialize().unwrap();
    assert_eq!(rows.len(), 1);
    assert_eq!(rows[0].3, "Starting");
    drop(sender);
    timeout(LIMIT, serving.task)
        .await
        .unwrap()
        .unwrap()
        .unwrap();
}

#[tokio::test]
async fn says_what_changed_and_nothing_else() {
    let bus = Bus::start();
    let (sender, receiver) = watch::channel(Arc::new(state()));
    let serving = bus.serve(receiver).await;
    let rule = MatchRule::builder()
        .msg_type(Type::Signal)
        .sender(NAME)
        .build()
        .unwrap();
    let mut signals = MessageStream::for_match_rule(rule, &serving.client, None)
        .await
        .unwrap();
    let mut next = async || {
        let message = timeout(LIMIT, signals.next())
            .await
            .unwrap()
            .unwrap()
            .unwrap();
        let header = message.header();
        let name = format!(
            "{} {}",
            header.path().unwrap().as_str().trim_start_matches(PATH),
            header.member().unwrap()
        );
        (name, message.clone())
    };
    sender.send_modify(|state| {
        let state = Arc::make_mut(state);
        state.instances.get_mut("web-ab12c").unwrap().phase = "Running".to_owned();
        state.leader = true;
    });
    let (name, message) = next().await;
    assert_eq!(name, " PropertiesChanged");
    let body = message.body();
    let (interface, changed, _): (String, BTreeMap<String, OwnedVariant>, Vec<String>) =
        body.deserialize().unwrap();
    assert_eq!(interface, MANAGER);
    assert_eq!(changed.keys().collect::<Vec<_>>(), ["Leader"]);
    assert_eq!(next().await.0, " NodeChanged");
    let (name, message) = next().await;
    assert_eq!(name, "/instance/web_2dab12c PropertiesChanged");
    let body = message.body();
    let (_, changed, _): (String, BTreeMap<String, OwnedVariant>, Vec<String>) =
        body.deserialize().unwrap();
    assert_eq!(changed.keys().collect::<Vec<_>>(), ["Phase"]);
    assert_eq!(
        String::try_from(changed["Phase"].clone()).unwrap(),
        "Running"
    );
    assert_eq!(next().await.0, " InstanceChanged");

    sender.send_modify(|state| {
        let state = Arc::make_mut(state);
        let instance = state.instances.remove("web-ab12c").unwrap();
        state.instances.insert("web-cd34e".to_owned(), instance);
    });
    assert_eq!(next().await.0, " InstanceRemoved");
    assert_eq!(next().await.0, " InstanceChanged");
    let old = instance_path("web-ab12c");
    let gone = serving
        .call(
            &old,
            "org.freedesktop.DBus.Properties",
            "GetAll",
            &(INSTANCE,),
        )
        .await;
    gone.unwrap_err();
    let new = serving
        .properties(&instance_path("web-cd34e"), INSTANCE)
        .await;
    assert_eq!(String::try_from(new["Id"].clone()).unwrap(), "web-cd34e");
}

// Two threads, because this one blocks on the child processes that call.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_root_and_the_group_may_call_and_only_root_is_it() {
    let bus = Bus::start();
    let (_sender, receiver) = watch::channel(Arc::new(state()));
    let _serving = bus.serve(receiver).await;
    let (allowed, text) = bus.call_as(0, 0);
    assert!(allowed && text.contains("web-ab12c"), "{text}");
    let (allowed, text) = bus.call_as(NOBODY, GROUP.1);
    assert!(allowed && text.contains("web-ab12c"), "{text}");
    let (allowed, text) = bus.call_as(NOBODY, NOBODY);
    assert!(!allowed && text.contains("AccessDenied"), "{text}");

    let other = UserBus::at(NOBODY, bus.socket.clone())
        .connect()
        .await
        .unwrap();
    let (_sender, receiver) = watch::channel(Arc::new(state()));
    let error = serve(other, receiver).await.unwrap_err();
    assert!(matches!(error, PublishError::Refused(_)), "{error}");
}

#[tokio::test]
async fn a_bus_that_goes_away_is_told() {
    let mut bus = Bus::start();
    let (_sender, receiver) = watch::channel(Arc::new(state()));
    let serving = bus.serve(receiver).await;
    bus.daemon.kill().unwrap();
    let result = timeout(LIMIT, serving.task).await.unwrap().unwrap();
    assert!(matches!(result, Err(PublishError::Closed)), "{result:?}");
}
