//! The members of systemd's and logind's interfaces that KAT calls, and no others.
//!
//! `dbus/org.freedesktop.systemd1.xml` and `dbus/org.freedesktop.login1.xml` say the same in
//! introspection XML. A test holds these traits to the XML, and `tests/systemd_real.rs` holds the
//! XML to a running systemd. Properties are read with two `GetAll` calls (see `status.rs`).

use zbus::{
    OwnedObjectPath, Variant,
    wire::{ObjectPath, Type},
};

/// Bus name of a systemd manager.
pub const SYSTEMD: &str = "org.freedesktop.systemd1";
/// Object of a systemd manager.
pub const SYSTEMD_PATH: &str = "/org/freedesktop/systemd1";
/// Interface of a systemd manager.
pub const SYSTEMD_MANAGER: &str = "org.freedesktop.systemd1.Manager";
/// Interface of every unit.
pub const SYSTEMD_UNIT: &str = "org.freedesktop.systemd1.Unit";
/// Interface of a service.
pub const SYSTEMD_SERVICE: &str = "org.freedesktop.systemd1.Service";
/// Bus name of logind.
pub const LOGIND: &str = "org.freedesktop.login1";

/// A unit as `ListUnitsByPatterns` gives it, `(ssssssouso)`.
#[derive(Debug, Clone, serde::Deserialize, serde::Serialize, Type)]
pub struct ListedUnit {
    /// Primary name.
    pub name: String,
    /// Description.
    pub description: String,
    /// Load state.
    pub load_state: String,
    /// Active state.
    pub active_state: String,
    /// Sub state.
    pub sub_state: String,
    /// Unit that this one follows, or empty.
    pub following: String,
    /// Its object.
    pub path: OwnedObjectPath,
    /// Number of the queued job, or 0.
    pub job_id: u32,
    /// Kind of the queued job.
    pub job_type: String,
    /// Object of the queued job.
    pub job_path: OwnedObjectPath,
}

/// A link that enabling or disabling made or removed: kind, its path, what it points to.
pub type UnitFileChange = (String, String, String);

/// A user as `ListUsers` gives it: uid, name, object.
pub type ListedUser = (u32, String, OwnedObjectPath);

/// org.freedesktop.systemd1(5), Manager.
#[zbus::proxy(
    interface = "org.freedesktop.systemd1.Manager",
    default_service = "org.freedesktop.systemd1",
    default_path = "/org/freedesktop/systemd1"
)]
pub trait SystemdManager {
    /// Asks for signals; without it systemd sends none.
    fn subscribe(&self) -> zbus::Result<()>;

    /// Reads all unit files again and runs the generators; answers when that is done.
    fn reload(&self) -> zbus::Result<()>;

    /// Queues a start; answers with the job.
    fn start_unit(&self, name: &str, mode: &str) -> zbus::Result<OwnedObjectPath>;

    /// Queues a stop; answers with the job.
    fn stop_unit(&self, name: &str, mode: &str) -> zbus::Result<OwnedObjectPath>;

    /// Queues a restart; answers with the job.
    fn restart_unit(&self, name: &str, mode: &str) -> zbus::Result<OwnedObjectPath>;

    /// Sends a signal to the processes of a unit.
    fn kill_unit(&self, name: &str, whom: &str, signal: i32) -> zbus::Result<()>;

    /// Forgets the failed state of a unit.
    fn reset_failed_unit(&self, name: &str) -> zbus::Result<()>;

    /// Loaded units in any of the states (all when empty) that match any of the patterns.
    fn list_units_by_patterns(
        &self,
        states: &[&str],
        patterns: &[&str],
    ) -> zbus::Result<Vec<ListedUnit>>;

    /// Enables units; says whether they carry an `[Install]` section, and what was linked.
    fn enable_unit_files(
        &self,
        files: &[&str],
        runtime: bool,
        force: bool,
    ) -> zbus::Result<(bool, Vec<UnitFileChange>)>;

    /// Disables units; says what was unlinked.
    fn disable_unit_files(
        &self,
        files: &[&str],
        runtime: bool,
    ) -> zbus::Result<Vec<UnitFileChange>>;

    /// Makes a unit without a file and queues its start; answers with the job.
    fn start_transient_unit(
        &self,
        name: &str,
        mode: &str,
        properties: &[(&str, Variant<'_>)],
        aux: &[(&str, Vec<(&str, Variant<'_>)>)],
    ) -> zbus::Result<OwnedObjectPath>;

    /// Takes back the hold on a transient unit that was made with `AddRef`.
    fn unref_unit(&self, name: &str) -> zbus::Result<()>;

    /// A job ended.
    #[zbus(signal)]
    fn job_removed(
        &self,
        id: u32,
        job: ObjectPath<'_>,
        unit: &str,
        result: &str,
    ) -> zbus::Result<()>;

    /// A unit was loaded.
    #[zbus(signal)]
    fn unit_new(&self, id: &str, unit: ObjectPath<'_>) -> zbus::Result<()>;

    /// A unit was unloaded.
    #[zbus(signal)]
    fn unit_removed(&self, id: &str, unit: ObjectPath<'_>) -> zbus::Result<()>;

    /// A reload begins or has ended.
    #[zbus(signal)]
    fn reloading(&self, active: bool) -> zbus::Result<()>;
}

/// org.freedesktop.login1(5), Manager.
#[zbus::proxy(
    interface = "org.freedesktop.login1.Manager",
    default_service = "org.freedesktop.login1",
    default_path = "/org/freedesktop/login1"
)]
pub trait LoginManager {
    /// Lets a user's manager run without a session, or no longer.
    fn set_user_linger(&self, uid: u32, enable: bool, interactive: bool) -> zbus::Result<()>;

    /// Users that have a session or linger.
    fn list_users(&self) -> zbus::Result<Vec<ListedUser>>;

    /// Ends all sessions and the manager of a user.
    fn terminate_user(&self, uid: u32) -> zbus::Result<()>;
}
