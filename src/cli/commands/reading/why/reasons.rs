//! The meaning of each reason of a status or a condition, and what to try next.

use kat_types::reason::Reason;

/// The text of `katcall why` and `katcall explain` for a reason.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Explanation {
    /// A sentence without its full stop. The placeholders of [`ReasonPlaceholders`] stand for names.
    pub(crate) means: &'static str,
    /// What to try, with the same placeholders; empty where nothing needs to be done.
    pub(crate) next: &'static str,
}

/// Values of the placeholders in an explanation: `{namespace}` stands for `namespace`, and so on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReasonPlaceholders<'a> {
    pub(crate) namespace: &'a str,
    pub(crate) workload: &'a str,
    pub(crate) instance: &'a str,
    pub(crate) node: &'a str,
    pub(crate) image: &'a str,
    pub(crate) user: &'a str,
    pub(crate) unit: &'a str,
}

/// Upper-case words instead of names, where no object is known that has them.
pub(crate) const PLACEHOLDER_WORDS: ReasonPlaceholders<'static> = ReasonPlaceholders {
    namespace: "NAMESPACE",
    workload: "WORKLOAD",
    instance: "INSTANCE",
    node: "NODE",
    image: "IMAGE",
    user: "USER",
    unit: "UNIT",
};

impl ReasonPlaceholders<'_> {
    pub(crate) fn fill(&self, text: &str) -> String {
        let names = [
            ("{namespace}", self.namespace),
            ("{workload}", self.workload),
            ("{instance}", self.instance),
            ("{node}", self.node),
            ("{image}", self.image),
            ("{user}", self.user),
            ("{unit}", self.unit),
        ];
        names
            .into_iter()
            .fold(text.to_owned(), |text, (name, value)| {
                text.replace(name, value)
            })
    }
}

pub(super) const fn explained(means: &'static str, next: &'static str) -> Explanation {
    Explanation { means, next }
}

/// The reason of a stored word; `None` if this version does not know the word.
pub(crate) fn reason_of(word: &str) -> Option<Reason> {
    let id = word.strip_prefix(Reason::Member.word());
    match id.filter(|id| is_member_id(id)) {
        Some(_) => Some(Reason::Member),
        None => Reason::from_word(word),
    }
}

/// Whether the text may be the id of an etcd member, a hexadecimal number in lower case. Words of
/// events such as `MemberAdded` are told apart by that.
fn is_member_id(text: &str) -> bool {
    !text.is_empty()
        && text
            .chars()
            .all(|digit| matches!(digit, '0'..='9' | 'a'..='f'))
}

/// The explanation of a stored word; `None` if this version does not know the word.
pub(crate) fn find(word: &str) -> Option<Explanation> {
    reason_of(word).map(explanation)
}

pub(super) const LOGS: &str = "katcall logs {instance} -n {namespace}";
const UNIT: &str = "on {node}, as root: systemctl --user --machine={user}@.host status {unit}";
const AGENT: &str = "on {node}, as root: journalctl -u kat-agent -e";
const NETWORK: &str = "on {node}, as root: systemctl status kat-net && journalctl -u kat-net -e";
const ROLLOUT: &str = "katcall plan -f DIR of what is to come next, then katcall apply -f DIR";

#[rustfmt::skip]
pub(crate) const fn explanation(reason: Reason) -> Explanation {
    match reason {
        // Workloads.
        Reason::AllHealthy => explained("all instances run and are healthy", ""),
        Reason::Progressing => explained("instances of this generation are being started", ""),
        Reason::Unschedulable => explained("no machine can take an instance of it",
            "katcall get nodes, and katcall describe node NODE for labels, taints and what is requested; then change the file or the machine, or add a machine"),
        Reason::SecretMissing => explained("a secret that it uses, or a key of that secret, does not exist",
            "katcall get secrets -n {namespace} -o wide; katcall secret set NAME -n {namespace} --from-file KEY=PATH, and it continues by itself"),
        Reason::SecretUnusable => explained("a value of a secret cannot be passed to it",
            "set another value as the message says, or mount the secret as files"),
        Reason::SecretUnreadable => explained("a secret that it uses cannot be decrypted or encrypted",
            "on the machine in the message, as root: journalctl -u kat-agent -e"),
        Reason::SecretNotWritten => explained("the files of its secrets cannot be written on {node}", "on {node}: df -h /var/lib/kat"),
        Reason::NotWritable => explained("it does not fit into the store, so nothing of it is started, stopped or moved",
            "make its files, secrets or messages smaller and apply it again, or delete it: katcall delete workload NAME -n {namespace}; other workloads continue"),
        Reason::Deleting => explained("it is being deleted, and machines have yet to confirm that nothing of it is left",
            "katcall get nodes: a machine that does not answer delays it; katcall delete node NODE if that machine is gone for good"),
        Reason::Unreadable => explained("its stored files cannot be read any more, so its running instances are not changed", "apply its folder again"),
        Reason::UnreadableFiles => explained("its stored files cannot be read any more", "apply its folder again"),
        Reason::DrainBlocked => explained("an instance or volume of it cannot leave a machine that is being drained",
            "katcall uncordon {node}, or make room on another machine; katcall drain {node} --force stops the instance"),
        Reason::DrainWaits => explained("an instance of it cannot leave a machine that is being drained yet, and does so when its successor or another replica works, or its data has moved",
            "katcall why workload {namespace}/{workload} for its other instances; katcall drain {node} --force does not wait"),
        Reason::ProgressDeadlineExceeded => explained("its new version has not become healthy within progressDeadlineSeconds; the old version continues to serve",
            "katcall why instance INSTANCE for one of the new instances; katcall rollback workload {namespace}/{workload} returns to the old version"),
        Reason::FirstVersionStalled => explained("it has not become healthy within progressDeadlineSeconds, and no earlier version of it was healthy",
            "katcall why instance INSTANCE for one of its instances; then change its files, and apply it again"),
        Reason::Paused => explained("its rollout is paused: no instance of the new version replaces another until it is resumed",
            "katcall rollout resume {namespace}/{workload}"),
        Reason::Stopped => explained("a user stopped it; its volumes, its service address and its secrets stay",
            "katcall start {namespace}/{workload}"),
        Reason::AutoRollback => explained("a version made no progress, and autoRollback returned to the last healthy version",
            "katcall history {namespace}/{workload}; correct the files, and apply them again"),
        Reason::Served => explained("ingress machines serve the route", ""),
        Reason::CertificatePending => explained("the host's certificate is being ordered: until it is there, requests are answered with a page that says so",
            "katcall describe route HOST shows what it waits for"),
        Reason::CertificateFailed => explained("the host's certificate could not be ordered, and the leader tries again by itself: until it is there, requests are answered with a page that says so",
            "mend what the message says, such as the host's A and AAAA records: katcall describe route HOST; a secret named by its tls brings a certificate of your own"),
        Reason::CertificateLimitReached => explained("the namespace has used its orders of new certificates, and the leader orders the host's by itself when it may again: until it is there, requests are answered with a page that says so",
            "katcall describe route HOST shows when; an administrator raises the quota: katcall namespace set {namespace} certificateOrders=NUMBER; a secret named by its tls brings a certificate of your own"),
        Reason::TlsNotReady => explained("the host has no certificate that can be served: until it has one, its requests are answered with a page that says so",
            "katcall describe route HOST shows what it waits for; a secret named by its tls brings a certificate of your own"),
        Reason::HostTaken => explained("another workload had the host, or a wildcard that covers it, before this one: a host belongs to one namespace",
            "use another host, or remove the other route"),
        Reason::AuthNotReachable => explained("the workload of its forwardAuth cannot be asked: until it can, the route admits nobody",
            "apply that workload with the named port; in another namespace it needs allowNamespaces with the route's namespace"),
        Reason::IngressDisabled => explained("the cluster's setting ingress.enabled is false, so that no machine serves routes",
            "katcall config set ingress.enabled=true"),
        Reason::RouteRefused => explained("kat-ingress does not take the route or its certificate on a machine",
            "katcall describe route HOST shows why; change the file or the secret, and apply again"),
        Reason::IngressFailed => explained("kat-ingress does not run on {node}, or its files can't be written there",
            "on {node}: systemctl status kat-ingress.socket 'kat-ingress@*'"),
        Reason::IngressPortInUse => explained("a program of {node} holds port 80 or 443: KAT takes no port from a program of the machine, and other ingress machines serve",
            "stop that program, or label other machines with kat.dws.rip/role=ingress"),
        Reason::NoIngressMachine => explained("no machine serves routes",
            "katcall get nodes shows the machines; katcall label node NAME kat.dws.rip/role=ingress chooses one"),
        Reason::NoneFree => explained("no service address is free",
            "delete a workload that has one, or choose a larger serviceCIDR for a new cluster"),
        Reason::WaitsForDependency => explained("it has not started, because a workload of its startAfter is not there yet",
            "katcall why workload {namespace}/NAME for the workload that it waits for; without startAfter in its files it starts at once"),
        Reason::DependencyFailed => explained("it has not started, because a Job of its startAfter failed, or another workload there never reaches its condition",
            "katcall get runs -n {namespace} shows what failed; katcall job run {namespace}/NAME runs the Job again, and it starts by itself when that succeeds"),
        Reason::DependencyTimedOut => explained("it has not started, because a workload of its startAfter was not there within timeoutSeconds; it continues to wait, as onTimeout says",
            "katcall why workload {namespace}/NAME for the workload that it waits for; without startAfter in its files, or with `onTimeout: start`, it starts"),
        // Jobs and their runs.
        Reason::AwaitsSchedule => explained("the Job waits for its next scheduled time", "katcall job run {namespace}/{workload} runs it now"),
        Reason::RunActive => explained("a run of the Job is active", "katcall get runs -n {namespace}; katcall logs {workload} -n {namespace}"),
        Reason::RunWaits => explained("a run of the Job waits until the run before it has ended", "katcall get runs -n {namespace}; katcall job cancel {namespace}/{workload} ends the active ones"),
        Reason::RunSucceeded => explained("the last run of the Job succeeded", ""),
        Reason::RunCancelled => explained("a user cancelled the run", "katcall job run {namespace}/{workload} runs the Job again"),
        Reason::RunReplaced => explained("a later run took the run's place: concurrencyPolicy is Replace, or the files of a Job without schedule changed", ""),
        Reason::RunOverlapped => explained("a scheduled time came while a run was active, and concurrencyPolicy is Forbid; or it is Allow, and as many runs were active as may be", "make the schedule rarer, set activeDeadlineSeconds, or choose another concurrencyPolicy"),
        Reason::RunMissed => explained("no leader planned at a scheduled time, and catchUp or startingDeadlineSeconds allow no later run", "katcall job run {namespace}/{workload} runs it now"),
        Reason::BackoffLimitExceeded => explained("more instances of the run failed than backoffLimit allows", "katcall get runs -n {namespace}, and katcall logs run/NAME-N -n {namespace} for its output; katcall job run {namespace}/{workload} runs the Job again"),
        Reason::NoMatchingMachine => explained("no machine matched nodeSelector and tolerations of the Job when its run with one instance on each machine began", "katcall describe node NAME shows the labels and taints of a machine; then katcall job run {namespace}/{workload} runs the Job again"),
        Reason::MachineRemoved => explained("a machine of the run left the cluster before an instance had succeeded there; the other machines have done their part", "katcall get runs -n {namespace} -o wide; katcall job run {namespace}/{workload} runs the Job again, on the machines that match then"),
        Reason::DeadlineExceeded => explained("the run was not done after activeDeadlineSeconds, and was ended", "katcall get runs -n {namespace}, and katcall logs run/NAME-N -n {namespace} for its output; then set another activeDeadlineSeconds"),
        Reason::JobSuspended => explained("the Job is suspended: no run starts by its schedule", "katcall job resume {namespace}/{workload}, or `suspend: false` in job.kat"),
        Reason::ScheduleUnreadable => explained("the schedule or its time zone cannot be read by this version", "apply the Job with another schedule"),
        Reason::Interrupted => explained("the instance of the run ended before its program: its machine was switched off, or something stopped it; it counts as failed, and while the run is active and backoffLimit allows it, another attempt follows after a growing pause", "katcall get runs -n {namespace}"),
        // Instances.
        Reason::WaitingForAgent => explained("the agent of {node} has not reported it yet", "on {node}: systemctl status kat-agent"),
        Reason::WaitsForItsData => explained("its machine {node} does not answer; it writes data there and may still run, so it is not replaced",
            "start {node} again; if it is gone for good, katcall delete node {node}, and katcall delete volume to give up its data"),
        Reason::NodeNotReady => explained("its machine {node} does not answer, so its state is not known", "katcall why node {node}"),
        Reason::ImagePullFailed => explained("its image {image} cannot be pulled",
            "check the image's name and tag, and whether the registry answers: on {node}, podman pull {image}"),
        Reason::ImageNotFound => explained("the registry of its image {image} does not have it",
            "check the image's name and tag; katcall set image {workload}=IMAGE -n {namespace} gives another one"),
        Reason::ImagePullUnauthorized => explained("the registry of its image {image} requires a name and password, or refuses the given ones",
            "katcall registry login HOST -n {namespace}, as in the message; it continues by itself"),
        Reason::CredentialsUnreadable => explained("the name and password for the registry of its image cannot be decrypted or encrypted",
            "katcall registry login HOST -n {namespace} stores them again"),
        Reason::CrashLoop => explained("its program ends repeatedly; systemd restarts it after a growing pause", LOGS),
        Reason::Restarting => explained("its program ended and is restarted", LOGS),
        Reason::RestartsExhausted => explained("its program ended more often than restartPolicy allows; another instance replaces it after a growing pause",
            LOGS),
        Reason::ProgramFailed => explained("its program failed, and restartPolicy does not restart it; another instance replaces it after a growing pause", LOGS),
        Reason::ProgramEnded => explained("its program ended with success, and restartPolicy does not restart it; another instance replaces it after a growing pause", LOGS),
        Reason::Failed => explained("its unit failed, and the agent restarts it", LOGS),
        Reason::StartFailed => explained("systemd did not start its unit", UNIT),
        Reason::InitContainerRunning => explained("an init container runs; the main container starts when it has ended with success",
            "katcall logs {workload} -n {namespace} -c INIT-CONTAINER"),
        Reason::InitContainerFailed => explained("an init container failed, and the main container waits for it; restartPolicy limits the retries",
            "katcall logs {workload} -n {namespace} -c INIT-CONTAINER"),
        Reason::SidecarNotRunning => explained("its main container runs, but a sidecar does not: it receives no traffic until the sidecar runs; systemd restarts the sidecar",
            "katcall logs {workload} -n {namespace} -c SIDECAR"),
        Reason::CannotStart => explained("Podman cannot start its container, so its program never ran: the message has Podman's error; it is tried again after a growing pause",
            "check whether entrypoint, command, user and workingDir fit the image; then change its files, and apply them"),
        Reason::ImageLost => explained("its image is not on {node} any more, and is pulled again; this does not count as a restart", ""),
        Reason::StartInterrupted => explained("Podman lost its container during the start; this is not the program's fault and does not count as a restart; it is started again",
            UNIT),
        Reason::NetworkNotReady => explained("the network of its container could not be set up; this is not the program's fault and does not count as a restart",
            NETWORK),
        Reason::NetworkLinkMissing => explained("its container runs without its network link, so it cannot be reached; kat-net restores the link if it can",
            "on {node}, as root: systemctl status kat-net shows the cause; katcall restart {workload} -n {namespace} replaces its containers"),
        Reason::NetworkFilesMissing => explained("a file of KAT that its network needs is missing; the agent restores it", NETWORK),
        Reason::UserNotReady => explained("its user {user} could not be set up on {node}", AGENT),
        Reason::SystemdRefused => explained("the systemd manager of its user {user} refused a request", AGENT),
        Reason::FilesNotWritten => explained("files of KAT on {node} cannot be written, and writing is retried; until it succeeds, {node} uses their old content",
            "on {node}: df -h and df -i of the path in the message, findmnt of it, and journalctl -u kat-agent -e"),
        Reason::NotRenderable => explained("its unit cannot be rendered from its files",
            "change its files as in the message, and apply them"),
        Reason::NotUnderstood => explained("a newer version of KAT wrote it, and the agent of {node} cannot run it",
            "install the newer version of KAT on {node}"),
        Reason::CutOff => explained("its machine {node} was cut off from the leader, and onPartition stops it then",
            "katcall why node {node}"),
        Reason::HealthCheckPending => explained("it runs, and its health check has not succeeded yet: it receives no traffic until then", LOGS),
        Reason::Unhealthy => explained("it runs, and its health check fails: it receives no traffic until the check succeeds", LOGS),
        Reason::ConnectionDraining => explained("it receives no new connections and finishes the open ones; then it is stopped",
            ""),
        Reason::KilledAtStop => explained("its program did not end on its stop signal, so that its machine killed it after terminationGraceSeconds; what it had not written is lost",
            "set stopSignal to one that the program obeys, or init: true where it runs as the first process without handling signals"),
        Reason::StopNotEnding => explained("its unit or some of its processes do not end, so that nothing takes its place, it does not start again and its data is not moved: a process that waits for a file system that does not answer cannot be killed",
            "on {node}, as root: the systemd-cgls of the message where it has one, and ps -eLo pid,stat,wchan:32,args; bring back the file system that they wait for, or restart {node}"),
        Reason::RestartedUnhealthy => explained("its health check failed, and restartOnUnhealthy restarts it then", LOGS),
        Reason::VolumeMissing => explained("the data of one of its volumes was on {node} and is missing, and KAT creates no empty volume instead: a disk may not be mounted",
            "on {node}: findmnt, and mount the disk or restore the data; if the data is lost for good, create an empty folder there that belongs to user {user}"),
        Reason::VolumeNotRemoved => explained("the data of a deleted volume is not found, or belongs to another owner",
            "on {node}: findmnt of the path in the message, and mount its disk; if the disk is gone for good, `katcall volume forget NAMESPACE/WORKLOAD/VOLUME --on {node}` gives the data up"),
        Reason::VolumeForeign => explained("the folder of one of its volumes on {node} does not belong to this workload",
            "on {node}: ls -ln of the path in the message; move the folder away, or give it to user {user}"),
        Reason::VolumeForgotten => explained("the folder of one of its volumes on {node} is of data that a user gave up while its disk was missing, and KAT does not use it for another volume",
            "on {node}: look at the folder in the message, and move it away; to use its data, copy it back with cp -a; or unmount the disk that has returned"),
        Reason::ImageNotPinned => explained("its image is not pinned to a digest, so replicas that are pulled at different times may run different images",
            "see the message; `katcall registry set` sets how a registry is reached, and `katcall restart` resolves the tag again"),
        Reason::FilesFailed => explained("{node} could not write the files of the workload's folder that it mounts",
            "on {node}: df -h /var/lib/kat, and journalctl -u kat-agent -e"),
        Reason::VolumeFailed => explained("{node} could not prepare or check one of its volumes",
            "on {node}: df -h and findmnt of the path in the message, and journalctl -u kat-agent -e"),
        Reason::DiskNotAnswering => explained("a file system of {node} with volumes or host paths of instances does not answer, as a network file system without its server; an instance that has not started waits for it, and one that runs may hang in it",
            "on {node}: findmnt of the path in the message, and bring its server or its program back; or umount -l PATH and mount it anew"),
        Reason::VolumeMoving => explained("the data of one of its volumes is moving to another machine, and it starts again after the move",
            "katcall get volumes -n {namespace} -o wide shows the progress; katcall volume move {workload}/VOLUME --cancel cancels the move"),
        Reason::VolumeMoveFailing => explained("the data of one of its volumes did not reach another machine at the last try, which is repeated; it starts again after the move",
            "see the message; katcall volume move {workload}/VOLUME --cancel cancels the move; on the machine that is to receive the data, as root: journalctl -u kat-agent -e"),
        Reason::HostPathNotAllowed => explained("{node} does not allow containers to mount one of its paths",
            "add a folder above it to hostMountAllow in /etc/kat/agent.yaml of {node}, and restart kat-agent there; or change hostPath"),
        Reason::HostPathMissing => explained("a path that it mounts does not exist on {node}",
            "create it on {node}, or set ensureType: DirectoryOrCreate or FileOrCreate"),
        Reason::HostPathIsLink => explained("a path that it mounts, or a folder above it, is a symbolic link on {node}, which is not followed",
            "write the path that the link points to, as readlink -f on {node} says"),
        Reason::HostPathUnprotected => explained("a path that it mounts, or that is to be made for it, lies on {node} below a folder that others than root may change, who could put something else in its place",
            "on {node}: chown root: and chmod go-w of the folder in the message, where nothing else needs to write there; or make the path yourself, where KAT was to make it"),
        Reason::HostPathNotBound => explained("a path that it mounts could not be bound on {node} for its containers, or was changed while that was tried",
            "on {node}, as root: the journalctl of the message; it is tried again"),
        Reason::HostPathNotCreated => explained("a path that it mounts is not there on {node}, and KAT does not make it: it lies outside of the namespace's own folder",
            "make it on {node}; or write a path below /var/lib/kat/host/{namespace}; or add a folder above it to hostMountCreate in /etc/kat/agent.yaml of {node}, and restart kat-agent there"),
        Reason::HostPathUnexpected => explained("a path that it mounts is something else on {node} than ensureType says",
            "on {node}: ls -ld of the path in the message; then change ensureType or hostPath, or what lies there"),
        Reason::HostPortInUse => explained("a program of {node} itself listens on its host port and keeps it: KAT takes no port from a program of the machine",
            "on {node}: ss -tulpn; stop that program; the port is free ten minutes later, or at once after sudo systemctl restart kat-net; or set another hostPort"),
        Reason::HostPortNotAllowed => explained("{node} does not allow its host port to be forwarded to workloads",
            "add the port to hostPortsAllow in /etc/kat/agent.yaml of {node}, and restart kat-agent there; or write another hostPort, or auto"),
        Reason::MountsNotReachable => explained("its user {user} can't reach what it mounts on {node}, or a file of KAT's that it needs is missing there",
            "on {node}: namei -l of its paths, as katcall get volumes -n {namespace} -o wide shows them: {user} must be able to pass every folder above them"),
        Reason::HostNetworkNotAllowed => explained("it uses hostNetwork, and {node} does not allow containers to share its network",
            "write hostNetworkAllow: true into /etc/kat/agent.yaml of {node}, and restart kat-agent there; or leave hostNetwork out"),
        Reason::SecurityNotAllowed => explained("it requests less confinement or a capability that {node} does not allow",
            "add the word that the message names to securityAllow in /etc/kat/agent.yaml of {node}, and restart kat-agent there; or leave it out of container.quadlet or capAdd"),
        Reason::GroupNotAllowed => explained("it requests a group of the machine that {node} does not allow workloads to join",
            "add the group to groupsAllow in /etc/kat/agent.yaml of {node}, and restart kat-agent there; or leave it out of groups"),
        Reason::GroupMissing => explained("it requests a group that does not exist on {node}",
            "on {node}: getent group; then change groups, or make it with groupadd"),
        Reason::GroupsChanged => explained("it is restarted because the groups of its user {user} on {node} change", ""),
        Reason::DeviceMissing => explained("{node} does not have a device that it requests; it starts when the device is available",
            "plug it in, or choose the machine that has it: katcall label node NAME KEY=VALUE, and nodeSelector"),
        Reason::DeviceNotAllowed => explained("it requests a device that {node} does not allow containers to use",
            "add the device to devicesAllow in /etc/kat/agent.yaml of {node}, and restart kat-agent there"),
        Reason::DeviceNotOpen => explained("its user {user} may not open a device that it requests on {node}",
            "on {node}: ls -lL of the device; then write its group under groups"),
        Reason::GpuMissing => explained("no CDI spec on {node} has the GPU that it was assigned; it starts when one does",
            "on {node}: ls /etc/cdi /run/cdi, and write the spec anew, such as with nvidia-ctk cdi generate; or katcall restart workload {namespace}/{workload}, which assigns a GPU that is there"),
        Reason::GpuDriverMissing => explained("a device of its GPU does not exist on {node}, so that the driver is not loaded, or the CDI spec is outdated",
            "on {node}: load the driver, or write the CDI spec anew, such as with nvidia-ctk cdi generate"),
        Reason::MachineAccessNotAllowed => explained("it asks {node} for something with machineAccess that {node} does not let containers have",
            "add the word that the message names to machineAccessAllow in /etc/kat/agent.yaml of {node}, and restart kat-agent there; or leave it out of machineAccess"),
        Reason::UnconfirmedInstance => explained("it writes data, and no leader has confirmed its place since {node} started, so it waits: another machine may run it; an instance of a Job waits too where {node} has not heard from a leader lately, since its run may be over",
            "katcall status shows whether a machine leads; katcall why node {node} shows whether it reaches the leader"),
        // Machines.
        Reason::NoHeartbeat => explained("it does not report to the leader: it is off, cut off, or its agent does not run",
            "on {node}: systemctl status kat-agent; katcall delete node {node} if it is gone for good"),
        Reason::MostMachinesLost => explained("it does not report, and neither do most other machines; nothing is moved, since the cause may be the network",
            "check the network between the machines; katcall delete node {node} if it is gone for good"),
        Reason::Unconfirmed => explained("the cluster's store has not confirmed its list since its agent started; its known instances continue to run",
            "katcall status on a machine that holds the store"),
        Reason::Draining => explained("its instances are moving to other machines",
            "katcall drain {node} shows what cannot move; katcall uncordon {node} ends the drain"),
        Reason::Drained => explained("it is drained: it has no instances and gets no new ones", "katcall uncordon {node} ends the drain"),
        Reason::DiskPressure => explained("it is short of disk space, so that nothing new is placed on it but what runs on each machine, has its data there, is replaced in place, or was lost and has no other machine left; at half of that the instance with the largest use above its request of storage is stopped (Evicted); images that nothing uses go, the oldest first",
            "on {node}: df -h and df -i of the path in the message, and make room; diskFree in /etc/kat/agent.yaml says how much is to be free"),
        Reason::Evicted => explained("a disk of {node} ran full, and of what runs there it used the most above its request of storage, so that it was stopped; it starts again there when there is room, after a pause of one to ten minutes, or on another machine where that lasts; data in its volumes stays",
            "make it write less, or into a volume on a disk of its own; spec.container.resources.requests.storage says how much it may write before others are stopped; on {node}: df -h of the path in the message, and make room"),
        Reason::CdiSpecUnusable => explained("it does not use a file in /etc/cdi or /run/cdi, or a GPU in it, or nvidia-smi does not say the memory of its GPUs; other GPUs are used",
            "correct the file that the message names, or write it anew with the tool that made it; for nvidia-smi, on {node}: nvidia-smi, and systemctl restart kat-agent if the driver was installed after the agent's start"),
        Reason::ControllerMissing => explained("its control groups lack the memory or the processor controller, so limits have no effect there",
            "on {node}: kat-agent check"),
        Reason::AddressTaken => explained("it reports an address that another machine registered first; other machines continue to use the address for that machine",
            "katcall get nodes -o wide; katcall delete node NODE for a machine that is gone; else on {node}, as root: kat-agent reset, and join it again with --advertise-address and an address of its own"),
        Reason::OverlayDown => explained("it reports to the leader, and does not answer most other machines over the overlay, so that new connections go to other machines where any serves; nothing that runs there is stopped or replaced",
            "on {node}: systemctl status kat-net kat-wg; kat-agent check; a firewall on the way may drop UDP 51820"),
        Reason::DataPathDown => explained("its kat-net does not run, or has not answered for 8 s, so names of the cluster are not resolved there and no container starts, since none starts without its network; running containers continue",
            "on {node}: systemctl status kat-net; systemctl unmask kat-net.service kat-net.socket && systemctl restart kat-net.service"),
        Reason::AssignmentsNotApplied => explained("it reports to the leader, and has not acted on a change of its list of assignments for a minute, so nothing that changes takes effect there; what runs continues",
            "on {node}: journalctl -u kat-agent -e; systemctl restart kat-agent ends no container"),
        Reason::IsolationNotEnforced => explained("the cluster isolates namespaces, and kat-net on {node} does not, or not by the present rules: its containers reach those of other namespaces that are also on it, or on machines like it",
            "on {node}: systemctl status kat-net; journalctl -u kat-net -e; upgrade kat there if its version is earlier; katcall drain {node} moves its instances away meanwhile"),
        Reason::KatNetTooOld => explained("kat-net on {node} is of a version that does not open the host ports that {node} is to have because it serves routes (hostPortOn: ingress); other machines that serve routes have them",
            "upgrade kat on {node}, and on {node}: systemctl status kat-net; or, if other machines have the label kat.dws.rip/role=ingress as well, take it from {node}: katcall label node {node} kat.dws.rip/role-"),
        Reason::VirtualAddressTaken => explained("another host on the LAN of {node} has a virtual address that {node} is to hold: KAT takes no address from another host, and asks every few seconds whether it is free",
            "find the host by its hardware address, on {node}: ip neigh; give it another address, or choose another one: katcall config edit"),
        Reason::VirtualAddressRefused => explained("the kernel of {node} does not take a virtual address that {node} is to hold",
            "on {node}: journalctl -u kat-net -e"),
        Reason::NoAddressHolder => explained("no machine can hold the virtual address: each has to be an ingress machine that reports, with an interface in the network of the address",
            "katcall describe address NAME shows what each machine says"),
        Reason::Votes => explained("its etcd answers and has a vote; so it has the cluster's keys, and root on it can do anything to the whole cluster",
            ""),
        Reason::CatchesUp => explained("its etcd answers, and gets its vote when it has caught up", "if that lasts, on the machine that leads: journalctl -u kat-agent -e"),
        Reason::NoAnswer => explained("its etcd does not answer", "on {node}: systemctl status kat-etcd kat-agent"),
        Reason::Starts => explained("its etcd has no vote and does not answer yet", "if that lasts, on {node}: systemctl status kat-etcd kat-agent"),
        Reason::StoreFull => explained("the cluster's store is full, so nothing can be changed; instances continue to run",
            "katcall status on a machine that holds the store shows the remedy"),
        Reason::StoreNearlyFull => explained("the cluster's store is nearly full",
            "katcall status on a machine that holds the store shows the remedy"),
        Reason::StoreCorrupt => explained("the data of a member of the cluster's store differs from the other members', so nothing can be changed; instances continue to run",
            "katcall status on a machine that holds the store shows the member and the remedy"),
        Reason::EtcdHasKnownHoles => explained("a member of the cluster's store runs an etcd with known holes in its users' rights (CVE-2026-33343)",
            "upgrade etcd on the machines that hold the store when the distribution has a mended one; katcall status there names the versions"),
        Reason::ReaderTooOld => explained("its KAT is too old to read the files of a workload, so it does not become a member of the store and does not lead; instances run there as before",
            "upgrade kat on {node}"),
        Reason::Member => explained("the data of its etcd is lost, and it becomes a new member", ""),
    }
}

/// What to try where a rollout stopped.
pub(crate) fn after_stall() -> &'static str {
    ROLLOUT
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::reading::why::event_reasons::event_explanation;
    use kat_types::reason::EventReason;

    /// The explanations of both enums, each with its word.
    fn all() -> impl Iterator<Item = (&'static str, Explanation)> {
        let reasons = Reason::ALL.iter();
        let reasons = reasons.map(|reason| (reason.word(), explanation(*reason)));
        let events = EventReason::ALL.iter();
        let events = events.map(|reason| (reason.word(), event_explanation(*reason)));
        reasons.chain(events)
    }

    #[test]
    fn each_reason_has_a_sentence_without_its_full_stop() {
        for (word, Explanation { means, .. }) in all() {
            assert!(!means.is_empty() && !means.ends_with('.'), "{word}");
        }
    }

    #[test]
    fn each_placeholder_of_an_explanation_has_a_value() {
        for (word, Explanation { means, next }) in all() {
            for text in [means, next] {
                let filled = PLACEHOLDER_WORDS.fill(text);
                assert!(!filled.contains(['{', '}']), "{word}: {filled}");
            }
        }
    }

    #[test]
    fn each_word_finds_the_explanation_of_its_own_reason() {
        for reason in Reason::ALL {
            let found = find(reason.word()).map(|found| found.means);
            assert_eq!(found, Some(explanation(*reason).means), "{reason}");
        }
        assert!(find("OfANewerVersion").is_none());
    }

    #[test]
    fn the_reason_of_lost_data_is_explained_whatever_member_it_names() {
        let found = find(&kat_types::api::data_lost_reason("8e9e05c52164694d"));
        let member = explanation(Reason::Member);
        assert_eq!(found.map(|found| found.means), Some(member.means));
    }

    #[test]
    fn the_event_of_a_member_is_not_taken_for_a_member_whose_data_is_lost() {
        for reason in [EventReason::MemberAdded, EventReason::MemberVotes] {
            assert!(find(reason.word()).is_none(), "{reason}");
        }
    }
}
