//! A machine's user of a real etcd has no permission for the superuser's calls: users, roles,
//! members, upkeep.

use std::time::Duration;

use etcd_client::{
    AlarmAction, AlarmType, Certificate, Client, ConnectOptions, Error, Identity, Permission,
    TlsOptions,
};
use jiff::Timestamp;

use crate::{
    etcd::EtcdServer,
    suite::{put, write},
};
use kat_pki::LeafKind;
use kat_store::etcd_admin;
use kat_types::store::keys;

async fn client(server: &EtcdServer, kind: &LeafKind) -> Client {
    let identity = server
        .clients
        .issue(kind, Timestamp::now())
        .expect("a certificate");
    let tls = TlsOptions::new()
        .ca_certificate(Certificate::from_pem(server.clients.certificate_pem()))
        .identity(Identity::from_pem(
            identity.certificate_pem,
            identity.key_pem,
        ));
    // A member that is added but never starts costs the quorum, so later calls get no answer.
    let options = ConnectOptions::new()
        .with_tls(tls)
        .with_timeout(Duration::from_secs(3));
    Client::connect([server.url()], Some(options))
        .await
        .expect("a client")
}

/// Whether etcd refused a call for lack of permission.
fn denied<T>(answer: &Result<T, Error>) -> bool {
    match answer {
        Err(Error::GRpcStatus(status)) => status.message().contains("permission denied"),
        _ => false,
    }
}

/// Every call with its name and whether it was refused, in an order in which each could succeed.
async fn calls(client: &Client, own: u64) -> Vec<(&'static str, bool)> {
    let mut members = client.cluster_client();
    let mut upkeep = client.maintenance_client();
    let mut auth = client.auth_client();
    let urls = || vec!["https://127.0.0.1:1".to_owned()];
    let mut said = vec![
        ("user_list", denied(&auth.user_list().await)),
        ("user_get", denied(&auth.user_get("leader:alpha").await)),
        (
            "user_add",
            denied(&auth.user_add("other", "pw", None).await),
        ),
        (
            "user_change_password",
            denied(&auth.user_change_password("other", "pw2").await),
        ),
        ("role_list", denied(&auth.role_list().await)),
        ("role_get", denied(&auth.role_get("root").await)),
        ("role_add", denied(&auth.role_add("other").await)),
        (
            "user_grant_role",
            denied(&auth.user_grant_role("other", "other").await),
        ),
        (
            "user_revoke_role",
            denied(&auth.user_revoke_role("other", "other").await),
        ),
        ("user_delete", denied(&auth.user_delete("other").await)),
    ];
    let permission = Permission::read_write(keys::TOKENS).with_prefix();
    let granted = auth.role_grant_permission("other", permission).await;
    said.push(("role_grant_permission", denied(&granted)));
    said.push(("role_delete", denied(&auth.role_delete("other").await)));
    said.push(("defragment", denied(&upkeep.defragment().await)));
    said.push(("hash", denied(&upkeep.hash().await)));
    let snapshot = match upkeep.snapshot().await {
        Ok(mut stream) => denied(&stream.message().await),
        Err(error) => denied::<()>(&Err(error)),
    };
    said.push(("snapshot", snapshot));
    said.push((
        "member_update",
        denied(&members.member_update(own, urls()).await),
    ));
    said.push(("member_promote", denied(&members.member_promote(own).await)));
    said.push((
        "member_add",
        denied(&members.member_add(urls(), None).await),
    ));
    said.push(("member_remove", denied(&members.member_remove(own).await)));
    said.push(("auth_disable", denied(&auth.auth_disable().await)));
    said
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_changes_no_users_members_or_state_of_etcd() {
    let server = EtcdServer::start().await;
    let leader = server.leader("alpha").await;
    etcd_admin::bootstrap_auth(&leader, "alpha", &["alpha", "beta"])
        .await
        .expect("users");
    write(&leader, &[put(keys::CLUSTER_UID, "u")]).await;
    let own = etcd_admin::member_list(&leader).await.expect("members")[0].id;

    // The control: this user's client works.
    let beta = client(
        &server,
        &LeafKind::EtcdNode {
            name: "beta".into(),
        },
    )
    .await;
    let read = beta
        .kv_client()
        .get(keys::CLUSTER_UID, None)
        .await
        .expect("allowed");
    assert_eq!(read.kvs()[0].value(), b"u");
    for (call, denied) in calls(&beta, own).await {
        assert!(denied, "{call} is not refused to a node");
    }
    // Calls that this version of etcd permits to every user (docs/internals/limits.md).
    let mut upkeep = beta.maintenance_client();
    let raise = upkeep
        .alarm(AlarmAction::Activate, AlarmType::Nospace, None)
        .await;
    let open = [
        ("alarm", !denied(&raise)),
        ("compact", !denied(&beta.kv_client().compact(1, None).await)),
        (
            "lease_grant",
            !denied(&beta.lease_client().grant(5, None).await),
        ),
        ("leases", !denied(&beta.lease_client().leases().await)),
        ("move_leader", !denied(&upkeep.move_leader(own).await)),
        ("status", !denied(&upkeep.status().await)),
    ];
    println!("open to every user: {open:?}; {raise:?}");
    let mut root_upkeep = client(
        &server,
        &LeafKind::Leader {
            name: "alpha".into(),
        },
    )
    .await
    .maintenance_client();
    let disarm = root_upkeep
        .alarm(AlarmAction::Deactivate, AlarmType::Nospace, None)
        .await;
    disarm.expect("the superuser takes an alarm back");
    // The same calls by a user with the permission are not refused.
    let members = etcd_admin::member_list(&leader).await.expect("members");
    assert_eq!(members.len(), 1);
    let root = client(
        &server,
        &LeafKind::Leader {
            name: "alpha".into(),
        },
    )
    .await;
    for (call, denied) in calls(&root, own).await {
        assert!(!denied, "{call} is refused to the superuser");
    }
}
