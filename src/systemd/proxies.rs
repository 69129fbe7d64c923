//! The members of systemd's and logind's D-Bus interfaces that KAT uses.
//!
//! `dbus/org.freedesktop.systemd1.xml` and `dbus/org.freedesktop.login1.xml` have the same members
//! as introspection XML. A test compares these traits with the XML, and `tests/systemd_real.rs`
//! compares the XML with a running systemd. Properties are read one by one (see `status.rs`).

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

/// A unit in the answer of `ListUnitsByPatterns` or `ListUnitsByNames`, `(ssssssouso)`.
#[derive(Debug, Clone, serde::Deserialize, serde::Serialize, Type)]
pub struct ListedUnit {
    pub name: String,
    pub description: String,
    pub load_state: String,
    pub active_state: String,
    pub sub_state: String,
    /// Unit that this one follows, or empty.
    pub following: String,
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

/// A user in the answer of `ListUsers`: uid, name, object.
pub type ListedUser = (u32, String, OwnedObjectPath);

/// org.freedesktop.systemd1(5), Manager.
#[zbus::proxy(
    interface = "org.freedesktop.systemd1.Manager",
    default_service = "org.freedesktop.systemd1",
    default_path = "/org/freedesktop/systemd1"
)]
pub trait SystemdManager {
    /// Subscribes to signals; without it systemd sends none.
    fn subscribe(&self) -> zbus::Result<()>;

    /// Reads all unit files again and runs the generators; returns after that.
    fn reload(&self) -> zbus::Result<()>;

    /// Queues a start; returns the job.
    fn start_unit(&self, name: &str, mode: &str) -> zbus::Result<OwnedObjectPath>;

    /// Queues a stop; returns the job.
    fn stop_unit(&self, name: &str, mode: &str) -> zbus::Result<OwnedObjectPath>;

    /// Queues a restart; returns the job.
    fn restart_unit(&self, name: &str, mode: &str) -> zbus::Result<OwnedObjectPath>;

    /// Sends a signal to the processes of a unit.
    fn kill_unit(&self, name: &str, whom: &str, signal: i32) -> zbus::Result<()>;

    /// Resets the failed state of a unit.
    fn reset_failed_unit(&self, name: &str) -> zbus::Result<()>;

    /// Loaded units in any of the states (all when empty) that match any of the patterns.
    fn list_units_by_patterns(
        &self,
        states: &[&str],
        patterns: &[&str],
    ) -> zbus::Result<Vec<ListedUnit>>;

    /// Units with these names, which are loaded if they were not.
    fn list_units_by_names(&self, names: &[&str]) -> zbus::Result<Vec<ListedUnit>>;

    /// Enables units; returns whether they have an `[Install]` section, and the links that were
    /// made.
    fn enable_unit_files(
        &self,
        files: &[&str],
        runtime: bool,
        force: bool,
    ) -> zbus::Result<(bool, Vec<UnitFileChange>)>;

    /// Disables units; returns the links that were removed.
    fn disable_unit_files(
        &self,
        files: &[&str],
        runtime: bool,
    ) -> zbus::Result<Vec<UnitFileChange>>;

    /// Makes a transient unit and queues its start; returns the job.
    fn start_transient_unit(
        &self,
        name: &str,
        mode: &str,
        properties: &[(&str, Variant<'_>)],
        aux: &[(&str, Vec<(&str, Variant<'_>)>)],
    ) -> zbus::Result<OwnedObjectPath>;

    /// Releases the reference to a transient unit that was made with `AddRef`.
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

    /// A reload begins (`active`) or has ended.
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
    /// Enables or disables lingering of a user.
    fn set_user_linger(&self, uid: u32, enable: bool, interactive: bool) -> zbus::Result<()>;

    /// Users that have a session or linger.
    fn list_users(&self) -> zbus::Result<Vec<ListedUser>>;

    /// Ends all sessions and the manager of a user.
    fn terminate_user(&self, uid: u32) -> zbus::Result<()>;
}
