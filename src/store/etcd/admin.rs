//! Administration of etcd's users, roles and members, by the leader.
//!
//! Users have no passwords: the common name of a client's certificate is its user. `leader:NAME`
//! has etcd's root role, because snapshots, defragmentation and members need it. `node:NAME` reads
//! the prefixes in docs/internals/identity-and-access.md. etcd requires a user `root`; it has no
//! password, and no certificate is ever issued for it.

use std::collections::BTreeSet;

use etcd_client::{
    Error as ClientError, MemberAddOptions, Permission, RoleRevokePermissionOptions, UserAddOptions,
};

use super::{EtcdStore, error};
use crate::StoreError;
use kat_types::{resource::name, store::keys};

/// etcd's superuser, and its role.
const ROOT: &str = "root";

/// Prefix of the names of users that may lead.
const LEADER: &str = "leader:";

/// Prefix of the names of users and roles by which machines of version 0.1.0 read etcd.
const NODE: &str = "node:";

/// The etcd user of a machine that may lead.
pub fn leader_user(node: &str) -> String {
    format!("{LEADER}{node}")
}

/// The etcd user, and the role, of a machine.
pub fn node_user(node: &str) -> String {
    format!("{NODE}{node}")
}

/// The prefixes that a machine's user may read.
pub fn node_prefixes(node: &str) -> [String; 4] {
    [
        keys::node_desired(node),
        keys::NETWORK.to_owned(),
        keys::DNS.to_owned(),
        keys::CONFIG.to_owned(),
    ]
}

/// A member of the etcd cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EtcdMember {
    /// etcd's member id.
    pub id: u64,
    /// Its name; empty until it has started.
    pub name: String,
    /// URLs for the other members.
    pub peer_urls: Vec<String>,
    /// URLs for clients; empty until it has started.
    pub client_urls: Vec<String>,
    /// Whether it has no vote yet.
    pub is_learner: bool,
}

/// State of the member that answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EtcdStatus {
    /// Version of etcd, such as `3.5.16`.
    pub version: String,
    /// Size of its database file, in bytes.
    pub db_size: i64,
    /// Bytes of the file that are in use; 0 before etcd 3.4.
    pub db_size_in_use: i64,
    /// Member id of the member that answered.
    pub member: u64,
    /// Id of the raft leader; 0 if there is none.
    pub leader: u64,
    /// Raft term.
    pub raft_term: u64,
    /// Alarms and other errors that it reports.
    pub errors: Vec<String>,
    /// Revision of the store that the member has.
    pub revision: i64,
    /// File size in bytes at which it takes no more writes; 0 before etcd 3.6, which does not
    /// report it.
    pub quota: i64,
}

/// Creates the users and roles for `leader` and `nodes` (names of machines) and enables
/// authentication. Level-triggered: existing users and roles stay, and excess permissions of a
/// node's role are revoked. So it may run again at any time, with the leader's certificate.
///
/// # Errors
/// [`StoreError::Invalid`] for a name that is not a machine's; errors of etcd.
pub async fn bootstrap_auth(
    store: &EtcdStore,
    leader: &str,
    nodes: &[&str],
) -> Result<(), StoreError> {
    ensure_role(store, ROOT).await?;
    ensure_user(store, ROOT, ROOT).await?;
    add_leader_user(store, leader).await?;
    for node in nodes {
        add_node_user(store, node).await?;
    }
    store
        .call(true, |client| async move {
            client.auth_client().auth_enable().await.map(drop)
        })
        .await
}

/// Creates the etcd user of a machine that may lead.
///
/// # Errors
/// As [`bootstrap_auth`].
pub async fn add_leader_user(store: &EtcdStore, node: &str) -> Result<(), StoreError> {
    check(node)?;
    ensure_user(store, &leader_user(node), ROOT).await
}

/// Creates the etcd user and the role of a machine.
///
/// # Errors
/// As [`bootstrap_auth`].
pub async fn add_node_user(store: &EtcdStore, node: &str) -> Result<(), StoreError> {
    check(node)?;
    let user = node_user(node);
    ensure_role(store, &user).await?;
    ensure_permissions(store, &user, &node_prefixes(node)).await?;
    ensure_user(store, &user, &user).await
}

/// Removes a machine's users and role; no error if they do not exist.
///
/// # Errors
/// As [`bootstrap_auth`].
pub async fn remove_node_user(store: &EtcdStore, node: &str) -> Result<(), StoreError> {
    check(node)?;
    remove_user(store, leader_user(node)).await?;
    remove_node_reader(store, node).await
}

async fn remove_user(store: &EtcdStore, user: String) -> Result<(), StoreError> {
    store
        .call(true, |client| {
            let user = user.clone();
            async move { fine_if(client.auth_client().user_delete(user).await, "not found") }
        })
        .await
}

/// Removes the user with which a machine reads its own list, and its role; the user with which it
/// leads stays.
///
/// # Errors
/// As [`bootstrap_auth`].
pub async fn remove_node_reader(store: &EtcdStore, node: &str) -> Result<(), StoreError> {
    check(node)?;
    remove_user(store, node_user(node)).await?;
    let role = node_user(node);
    store
        .call(true, |client| {
            let role = role.clone();
            async move { fine_if(client.auth_client().role_delete(role).await, "not found") }
        })
        .await
}

/// The members of the cluster.
///
/// # Errors
/// Errors of etcd.
pub async fn member_list(store: &EtcdStore) -> Result<Vec<EtcdMember>, StoreError> {
    let answer = store
        .call(true, |client| async move {
            client.cluster_client().member_list().await
        })
        .await?;
    let members = answer.members().iter().map(|member| EtcdMember {
        id: member.id(),
        name: member.name().to_owned(),
        peer_urls: member.peer_urls().to_vec(),
        client_urls: member.client_urls().to_vec(),
        is_learner: member.is_learner(),
    });
    Ok(members.collect())
}

/// State of the member that answers.
///
/// # Errors
/// Errors of etcd.
pub async fn status(store: &EtcdStore) -> Result<EtcdStatus, StoreError> {
    let answer = store
        .call(true, |client| async move {
            client.maintenance_client().status().await
        })
        .await?;
    Ok(EtcdStatus {
        version: answer.version().to_owned(),
        db_size: answer.db_size(),
        db_size_in_use: answer.raft_used_db_size(),
        member: answer.header().map_or(0, |header| header.member_id()),
        leader: answer.leader(),
        raft_term: answer.raft_term(),
        errors: answer.errors().to_vec(),
        revision: answer.header().map_or(0, |header| header.revision()),
        quota: answer.db_size_quota(),
    })
}

/// Adds a member without a vote, with this URL for the other members. No error if it exists: etcd
/// allows one learner at a time, and the leader adds none before.
///
/// # Errors
/// Errors of etcd; also [`StoreError::Unavailable`] while a member is not connected to the others.
pub async fn add_learner(store: &EtcdStore, peer_url: &str) -> Result<(), StoreError> {
    store
        .call(false, |client| async move {
            let options = MemberAddOptions::new().with_is_learner();
            let mut cluster = client.cluster_client();
            fine_if(
                cluster
                    .member_add([peer_url.to_owned()], Some(options))
                    .await,
                "Peer URLs already exists",
            )
        })
        .await
}

/// Adds a member that votes from the start, with this URL for the other members. It must be about to
/// start: until then the others have to keep the quorum without it. No error if it exists.
///
/// # Errors
/// Errors of etcd; also [`StoreError::Unavailable`] while one of the other members has been connected
/// for less than 5 s.
pub async fn add_voting_member(store: &EtcdStore, peer_url: &str) -> Result<(), StoreError> {
    store
        .call(false, |client| async move {
            let added = client
                .cluster_client()
                .member_add([peer_url.to_owned()], None)
                .await;
            fine_if(added, "Peer URLs already exists")
        })
        .await
}

/// Gives a member its vote. The store must be connected to the member that leads raft: with
/// authentication, another member forwards the call without its user, and it fails (etcd issue
/// 20757; fixed in 3.6).
///
/// etcd 3.5.1 to 3.5.19 store the vote in only one of their two stores, and not in the one that 3.6
/// reads (issue 19557). etcd 3.5 itself uses the correct one; 3.5.20 and newer, and 3.6.0,
/// reconcile them at their start.
///
/// # Errors
/// Errors of etcd: [`StoreError::Invalid`] while the member has not caught up.
pub async fn promote_member(store: &EtcdStore, id: u64) -> Result<(), StoreError> {
    store
        .call(false, |client| async move {
            client.cluster_client().member_promote(id).await.map(drop)
        })
        .await
}

/// Removes a member. No error if it does not exist.
///
/// A member that was removed long ago may reappear after an upgrade to 3.6, if 3.5.26 was not run
/// before (issue 20967). It answers at no address of its own, and is removed again
/// (`kat_plan::lost_members`).
///
/// # Errors
/// Errors of etcd.
pub async fn remove_member(store: &EtcdStore, id: u64) -> Result<(), StoreError> {
    store
        .call(false, |client| async move {
            fine_if(
                client.cluster_client().member_remove(id).await,
                "member not found",
            )
        })
        .await
}

/// Moves the leadership of raft to another member. The store must be connected to the present
/// leader.
///
/// # Errors
/// Errors of etcd.
pub async fn move_raft_leader(store: &EtcdStore, to: u64) -> Result<(), StoreError> {
    store
        .call(false, |client| async move {
            client.maintenance_client().move_leader(to).await.map(drop)
        })
        .await
}

/// Removes the user of a machine that may no longer lead. No error if it does not exist.
///
/// # Errors
/// Errors of etcd.
pub async fn remove_leader_user(store: &EtcdStore, node: &str) -> Result<(), StoreError> {
    check(node)?;
    let user = leader_user(node);
    store
        .call(true, |client| {
            let user = user.clone();
            async move { fine_if(client.auth_client().user_delete(user).await, "not found") }
        })
        .await
}

/// Creates the missing users of these machines that may lead, and removes those of all other
/// machines.
///
/// # Errors
/// Errors of etcd.
pub async fn set_leader_users(
    store: &EtcdStore,
    nodes: &BTreeSet<String>,
) -> Result<(), StoreError> {
    for node in nodes {
        add_leader_user(store, node).await?;
    }
    for gone in leader_users(store).await?.difference(nodes) {
        remove_leader_user(store, gone).await?;
    }
    Ok(())
}

/// Removes the users and roles by which machines of version 0.1.0 read etcd.
///
/// # Errors
/// Errors of etcd.
pub async fn remove_node_readers(store: &EtcdStore) -> Result<(), StoreError> {
    let users = store
        .call(true, |client| async move {
            client.auth_client().user_list().await
        })
        .await?;
    // A removal that was interrupted leaves the role.
    let roles = store
        .call(true, |client| async move {
            client.auth_client().role_list().await
        })
        .await?;
    let names = users.users().iter().chain(roles.roles());
    let readers: BTreeSet<&str> = names.filter_map(|name| name.strip_prefix(NODE)).collect();
    for node in readers {
        remove_node_reader(store, node).await?;
    }
    Ok(())
}

/// Machines that have a user that may lead.
///
/// # Errors
/// Errors of etcd.
pub async fn leader_users(store: &EtcdStore) -> Result<BTreeSet<String>, StoreError> {
    let users = store
        .call(true, |client| async move {
            client.auth_client().user_list().await
        })
        .await?;
    let users = users.users().iter();
    let leaders = users.filter_map(|user| user.strip_prefix(LEADER));
    Ok(leaders.map(ToOwned::to_owned).collect())
}

fn check(node: &str) -> Result<(), StoreError> {
    name::check_label(node)
        .map_err(|error| StoreError::Invalid(format!("a machine's name: {error}")))
}

fn fine_if<T>(outcome: Result<T, ClientError>, message: &str) -> Result<(), ClientError> {
    match outcome {
        Ok(_) => Ok(()),
        Err(failure) if error::message(&failure).contains(message) => Ok(()),
        Err(failure) => Err(failure),
    }
}

async fn ensure_role(store: &EtcdStore, role: &str) -> Result<(), StoreError> {
    let roles = store
        .call(true, |client| async move {
            client.auth_client().role_list().await
        })
        .await?;
    if roles.roles().iter().any(|known| known == role) {
        return Ok(());
    }
    store
        .call(true, |client| async move {
            fine_if(client.auth_client().role_add(role).await, "already exists")
        })
        .await
}

async fn ensure_user(store: &EtcdStore, user: &str, role: &str) -> Result<(), StoreError> {
    let users = store
        .call(true, |client| async move {
            client.auth_client().user_list().await
        })
        .await?;
    if !users.users().iter().any(|known| known == user) {
        store
            .call(true, |client| async move {
                let options = UserAddOptions::new().with_no_pwd();
                let added = client.auth_client().user_add(user, "", Some(options)).await;
                fine_if(added, "already exists")
            })
            .await?;
    }
    let found = store
        .call(true, |client| async move {
            client.auth_client().user_get(user).await
        })
        .await?;
    if found.roles().iter().any(|known| known == role) {
        return Ok(());
    }
    store
        .call(true, |client| async move {
            client
                .auth_client()
                .user_grant_role(user, role)
                .await
                .map(drop)
        })
        .await
}

/// Gives a role read access to these prefixes and nothing else.
async fn ensure_permissions(
    store: &EtcdStore,
    role: &str,
    prefixes: &[String],
) -> Result<(), StoreError> {
    let found = store
        .call(true, |client| async move {
            client.auth_client().role_get(role).await
        })
        .await?
        .permissions();
    let wanted: Vec<Permission> = prefixes
        .iter()
        .map(|prefix| Permission::read(prefix.as_str()).with_prefix())
        .collect();
    for permission in found.iter().filter(|known| !wanted.contains(known)) {
        revoke_permission(store, role, permission).await?;
    }
    for permission in wanted.iter().filter(|wish| !found.contains(wish)) {
        store
            .call(true, |client| async move {
                let mut auth = client.auth_client();
                auth.role_grant_permission(role, permission.clone())
                    .await
                    .map(drop)
            })
            .await?;
    }
    Ok(())
}

async fn revoke_permission(
    store: &EtcdStore,
    role: &str,
    permission: &Permission,
) -> Result<(), StoreError> {
    store
        .call(true, |client| async move {
            let mut options = RoleRevokePermissionOptions::new();
            if !permission.range_end().is_empty() {
                options = options.with_range_end(permission.range_end());
            }
            let mut auth = client.auth_client();
            let revoked = auth
                .role_revoke_permission(role, permission.key(), Some(options))
                .await;
            fine_if(revoked, "not granted")
        })
        .await
}
