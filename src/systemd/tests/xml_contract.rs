//! The proxies call exactly the methods, signals and properties in the XML.

use std::{collections::BTreeSet, os::unix::net::UnixStream};

use futures_util::StreamExt;
use zbus::{
    Connection, Guid, Message, MessageStream, Variant, connection::Builder, message::Type,
    wire::ObjectPath,
};

use crate::{
    SERVICE_PROPERTIES, UNIT_PROPERTIES, USAGE_PROPERTIES,
    proxies::{
        JobRemoved, LoginManagerProxy, Reloading, SYSTEMD_MANAGER, SYSTEMD_SERVICE, SYSTEMD_UNIT,
        SystemdManagerProxy, UnitNew, UnitRemoved,
    },
};
use kat_testing::systemd::introspection::{Interfaces, parse};

const SYSTEMD_XML: &str = include_str!("../../../dbus/org.freedesktop.systemd1.xml");
const LOGIND_XML: &str = include_str!("../../../dbus/org.freedesktop.login1.xml");

/// A peer that answers each method of the XML with a value of the XML's signature, and refuses
/// every other call.
async fn recorder(
    interfaces: Interfaces,
) -> (Connection, tokio::task::JoinHandle<BTreeSet<String>>) {
    let (one, two) = UnixStream::pair().unwrap();
    let server = Builder::unix_stream(one).server(Guid::generate()).p2p();
    let client = Builder::unix_stream(two).p2p();
    let (server, client) = futures_util::join!(server.build(), client.build());
    let (server, client) = (server.unwrap(), client.unwrap());
    let mut calls = MessageStream::from(&server);
    let task = tokio::spawn(async move {
        let mut seen = BTreeSet::new();
        while let Some(Ok(call)) = calls.next().await {
            if call.message_type() != Type::MethodCall {
                continue;
            }
            let header = call.header();
            let interface = header.interface().unwrap().to_string();
            let member = header.member().unwrap().to_string();
            let Some(method) = interfaces[&interface].methods.get(&member) else {
                let name = "org.freedesktop.DBus.Error.UnknownMethod";
                let text = format!("{interface}.{member} is not in the XML");
                let error = Message::error(&header, name).build(&text).unwrap();
                server.send(&error).await.unwrap();
                continue;
            };
            let takes = call.body().signature().to_string_no_parens();
            if takes != method.takes {
                let name = "org.freedesktop.DBus.Error.InvalidArgs";
                let text = format!("{member} takes {}, was given {takes}", method.takes);
                let error = Message::error(&header, name).build(&text).unwrap();
                server.send(&error).await.unwrap();
                continue;
            }
            seen.insert(member);
            let path = ObjectPath::try_from("/job").unwrap();
            let reply = Message::method_return(&header);
            let reply = match method.gives.as_str() {
                "" => reply.build(&()),
                "o" => reply.build(&path),
                "a(ssssssouso)" => reply.build(&vec![(
                    "a.service",
                    "",
                    "loaded",
                    "active",
                    "running",
                    "",
                    &path,
                    0u32,
                    "",
                    &path,
                )]),
                "ba(sss)" => reply.build(&(true, vec![("symlink", "/a", "/b")])),
                "a(sss)" => reply.build(&vec![("unlink", "/a", "")]),
                "a(uso)" => reply.build(&vec![(1000u32, "someone", &path)]),
                other => panic!("say here how to answer {other}"),
            };
            server.send(&reply.unwrap()).await.unwrap();
        }
        seen
    });
    (client, task)
}

#[tokio::test]
async fn systemd_is_called_as_the_xml_says() {
    let interfaces = parse(SYSTEMD_XML).unwrap();
    let (connection, task) = recorder(interfaces.clone()).await;
    let manager = SystemdManagerProxy::new(&connection).await.unwrap();
    manager.subscribe().await.unwrap();
    manager.reload().await.unwrap();
    manager.start_unit("a", "replace").await.unwrap();
    manager.stop_unit("a", "replace").await.unwrap();
    manager.restart_unit("a", "replace").await.unwrap();
    manager.kill_unit("a", "all", 15).await.unwrap();
    manager.reset_failed_unit("a").await.unwrap();
    let units = manager
        .list_units_by_patterns(&[], &["kat-*"])
        .await
        .unwrap();
    assert_eq!(units[0].name, "a.service");
    let units = manager.list_units_by_names(&["a.service"]).await.unwrap();
    assert_eq!(units[0].name, "a.service");
    let (carries, changes) = manager
        .enable_unit_files(&["a"], false, false)
        .await
        .unwrap();
    assert!(carries && changes.len() == 1);
    manager.disable_unit_files(&["a"], false).await.unwrap();
    manager
        .start_transient_unit("a", "fail", &[("Type", Variant::new("oneshot"))], &[])
        .await
        .unwrap();
    manager.unref_unit("a").await.unwrap();
    drop(manager);
    connection.close().await.unwrap();
    let called: BTreeSet<String> = task.await.unwrap();
    let written: BTreeSet<String> = interfaces[SYSTEMD_MANAGER]
        .methods
        .keys()
        .cloned()
        .collect();
    assert_eq!(called, written);
}

#[tokio::test]
async fn logind_is_called_as_the_xml_says() {
    let interfaces = parse(LOGIND_XML).unwrap();
    let (connection, task) = recorder(interfaces.clone()).await;
    let manager = LoginManagerProxy::new(&connection).await.unwrap();
    manager.set_user_linger(1, true, false).await.unwrap();
    assert_eq!(manager.list_users().await.unwrap()[0].0, 1000);
    manager.terminate_user(1).await.unwrap();
    drop(manager);
    connection.close().await.unwrap();
    let called: BTreeSet<String> = task.await.unwrap();
    let written: BTreeSet<String> = interfaces["org.freedesktop.login1.Manager"]
        .methods
        .keys()
        .cloned()
        .collect();
    assert_eq!(called, written);
}

#[test]
fn signals_are_read_as_the_xml_says() {
    let interfaces = parse(SYSTEMD_XML).unwrap();
    let path = ObjectPath::try_from("/unit").unwrap();
    let mut read = BTreeSet::new();
    for (name, signature) in &interfaces[SYSTEMD_MANAGER].signals {
        let signal = Message::signal("/org/freedesktop/systemd1", SYSTEMD_MANAGER, name.as_str());
        let signal = match signature.as_str() {
            "uoss" => signal.build(&(7u32, &path, "a.service", "done")),
            "so" => signal.build(&("a.service", &path)),
            "b" => signal.build(&true),
            other => panic!("say here how to build {other}"),
        }
        .unwrap();
        if let Some(signal) = JobRemoved::from_message(signal.clone()) {
            assert_eq!(*signal.args().unwrap().result(), "done");
        } else if let Some(signal) = UnitNew::from_message(signal.clone()) {
            assert_eq!(*signal.args().unwrap().id(), "a.service");
        } else if let Some(signal) = UnitRemoved::from_message(signal.clone()) {
            assert_eq!(*signal.args().unwrap().id(), "a.service");
        } else if let Some(signal) = Reloading::from_message(signal) {
            assert!(signal.args().unwrap().active());
        } else {
            panic!("no proxy reads {name}");
        }
        read.insert(name.clone());
    }
    assert_eq!(read.len(), 4);
}

#[test]
fn properties_are_those_of_the_xml() {
    let interfaces = parse(SYSTEMD_XML).unwrap();
    for (interface, list) in [
        (SYSTEMD_UNIT, UNIT_PROPERTIES.to_vec()),
        (
            SYSTEMD_SERVICE,
            [SERVICE_PROPERTIES, USAGE_PROPERTIES].concat(),
        ),
    ] {
        let written: BTreeSet<(&str, &str)> = interfaces[interface]
            .properties
            .iter()
            .map(|(name, property)| (name.as_str(), property.kind.as_str()))
            .collect();
        assert_eq!(written, list.into_iter().collect(), "{interface}");
    }
}
