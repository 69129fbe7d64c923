//! Test doubles for a machine's accounts, journal and network.

use super::*;

/// User accounts in memory.
#[derive(Default)]
pub(super) struct Accounts {
    pub(super) root: PathBuf,
    pub(super) users: Mutex<BTreeMap<u32, WorkloadUser>>,
    /// Whether other accounts already have the ids.
    pub(super) taken: AtomicBool,
    /// The groups of the machine, with their gids.
    pub(super) known: Mutex<BTreeMap<String, u32>>,
    /// The groups of each user, by uid.
    pub(super) groups: Mutex<BTreeMap<u32, BTreeSet<String>>>,
    /// How long the removal of a user takes.
    pub(super) going: Mutex<Duration>,
}

#[async_trait]
impl UserAccounts for Accounts {
    async fn ensure(&self, user: &WorkloadUser) -> Result<(), UserError> {
        if self.taken.load(Ordering::Relaxed) {
            return Err(UserError::Incomplete {
                user: user.name.clone(),
                missing: "its uid is taken by dora".to_owned(),
            });
        }
        self.users.lock().insert(user.uid, user.clone());
        Ok(())
    }

    async fn remove(&self, user: &WorkloadUser) -> Result<(), UserError> {
        let going = *self.going.lock();
        tokio::time::sleep(going).await;
        self.users.lock().remove(&user.uid);
        Ok(())
    }

    fn home(&self, user: &WorkloadUser) -> PathBuf {
        self.root.join("home").join(&user.name)
    }

    fn find(&self, uid: u32) -> Option<WorkloadUser> {
        self.users.lock().get(&uid).cloned()
    }

    fn is_foreign(&self, _uid: u32) -> Result<bool, UserError> {
        Ok(self.taken.load(Ordering::Relaxed))
    }

    fn all(&self) -> Vec<u32> {
        self.users.lock().keys().copied().collect()
    }

    fn groups(&self, user: &WorkloadUser) -> Result<MachineGroups, UserError> {
        let groups = self.groups.lock();
        Ok(MachineGroups {
            all: self.known.lock().clone(),
            of_user: groups.get(&user.uid).cloned().unwrap_or_default(),
        })
    }

    async fn set_groups(
        &self,
        user: &WorkloadUser,
        groups: &BTreeSet<String>,
    ) -> Result<(), UserError> {
        let mut all = self.groups.lock();
        all.insert(user.uid, groups.clone());
        Ok(())
    }
}

/// A journal by unit, on the machine's monotonic clock.
pub(super) struct Logs {
    pub(super) started: Instant,
    pub(super) entries: Mutex<BTreeMap<String, Vec<LogEntry>>>,
    /// By unit, the line that the hook logs in each run until it is removed here.
    pub(super) refusals: Mutex<BTreeMap<String, String>>,
}

impl Logs {
    pub(super) fn new(started: Instant) -> Self {
        Self {
            started,
            entries: Mutex::default(),
            refusals: Mutex::default(),
        }
    }

    pub(super) fn say(&self, unit: &str, text: &str, hook_error: bool) {
        self.say_as("podman", unit, text, hook_error);
    }

    pub(super) fn say_as(&self, identifier: &str, unit: &str, text: &str, hook_error: bool) {
        let now = microseconds(self.started);
        let entry = LogEntry {
            time_us: now,
            monotonic_us: now,
            message: text.as_bytes().to_vec(),
            priority: 3,
            identifier: identifier.to_owned(),
            stream: ProgramStream::Stderr,
            container_name: None,
            container_id: None,
            invocation_id: None,
            from_program: false,
            partial: false,
            hook_error,
            fenced: false,
            podman_event: false,
            cursor: String::new(),
        };
        self.entries
            .lock()
            .entry(unit.to_owned())
            .or_default()
            .push(entry);
    }

    /// `kat-net` says that it has killed the unit's container.
    pub(super) fn say_fenced(&self, unit: &str) {
        self.say_as("kat-net", unit, "kat-net killed it", true);
        if let Some(entry) = self
            .entries
            .lock()
            .get_mut(unit)
            .and_then(|all| all.last_mut())
        {
            entry.fenced = true;
        }
    }

    /// From now on the hook fails in every run of the unit with `text`, or no longer fails.
    pub(super) fn refuse(&self, unit: &str, text: Option<&str>) {
        let mut refusals = self.refusals.lock();
        match text {
            Some(text) => refusals.insert(unit.to_owned(), text.to_owned()),
            None => refusals.remove(unit),
        };
    }
}

#[async_trait]
impl LogSource for Logs {
    async fn synchronize(&self) -> Result<(), LogError> {
        Ok(())
    }

    fn entries(&self, query: &JournalQuery) -> LogEntries {
        // The agent queries a run after its end, when the hook has already logged.
        let refusal = self.refusals.lock().get(&query.unit).cloned();
        if let Some(refusal) = refusal {
            self.say(&query.unit, &refusal, true);
        }
        let entries = self.entries.lock();
        let found = entries.get(&query.unit).cloned().unwrap_or_default();
        Box::pin(futures_util::stream::iter(found.into_iter().map(Ok)))
    }
}

/// The answer of every instance to its health probe.
pub(super) struct Answers(pub(super) Mutex<Result<u16, String>>);

#[async_trait]
impl ProbeNetwork for Answers {
    async fn connect(&self, _: SocketAddrV4) -> Result<(), String> {
        self.0.lock().clone().map(drop)
    }

    async fn get(&self, _: SocketAddrV4, _: &str) -> Result<u16, String> {
        self.0.lock().clone()
    }
}

/// Podman's generator, whose units have the text of their quadlets. At first it is not installed.
pub(super) struct Generator {
    root: Root,
    pub(super) is_installed: AtomicBool,
}

impl Generator {
    pub(super) fn new(root: &Root) -> Self {
        Self {
            root: root.clone(),
            is_installed: AtomicBool::new(false),
        }
    }
}

#[async_trait]
impl UnitGenerator for Generator {
    async fn units(&self, uid: u32) -> Result<BTreeMap<String, String>, GeneratorError> {
        if !self.is_installed.load(Ordering::Relaxed) {
            let program = "podman-user-generator".to_owned();
            return Err(GeneratorError::Command(CommandError::NotFound { program }));
        }
        let folder = self.root.below(QUADLETS).join(uid.to_string());
        let units = generate(&folder, &Behaviours::default());
        Ok(units
            .into_iter()
            .map(|(name, one)| (name, one.text))
            .collect())
    }
}
