//! The fields of `cluster.kat` and of `/etc/kat/agent.yaml`.

use super::{
    API_VERSION, Field,
    FieldType::{self, Boolean, Cidr, Integer, Mapping, Processor, Size, Text, TextList, Word},
};
use crate::kind::DocumentKind;

const fn cluster(
    path: &'static str,
    value: FieldType,
    example: &'static str,
    description: &'static str,
) -> Field {
    Field::new(
        DocumentKind::ClusterConfiguration,
        path,
        value,
        example,
        description,
    )
}

const fn agent(
    path: &'static str,
    value: FieldType,
    example: &'static str,
    description: &'static str,
) -> Field {
    Field::new(DocumentKind::AgentConfig, path, value, example, description)
}

const PORT: FieldType = Integer(1, 65_535);

#[rustfmt::skip]
pub(super) const FIELDS: &[Field] = &[
    cluster("apiVersion", Word(API_VERSION), "kat.dws.rip/v1alpha1", "version of the schema").required().identity(),
    cluster("kind", Word(&["ClusterConfiguration"]), "ClusterConfiguration", "what the document is").required().identity(),
    cluster("metadata", Mapping, "{name: home}", "the cluster's name").required().identity(),
    cluster("metadata.name", Text, "home", "name: a DNS label of at most 40 characters").required().identity(),
    cluster("spec", Mapping, "{clusterCIDR: 10.100.0.0/16, serviceCIDR: 10.200.0.0/16}", "settings").required(),
    cluster("spec.clusterCIDR", Cidr, "10.64.0.0/16", "addresses of machines and instances; stays").required(),
    cluster("spec.serviceCIDR", Cidr, "10.65.0.0/16", "addresses of services; stays").required(),
    cluster("spec.nodeSubnetBits", Integer(1, 16), "8", "how much longer a node's prefix is than the cluster's; stays").default("7"),
    cluster("spec.clusterDomain", Text, "kat.internal", "suffix of every name; stays").default("kat.cluster.local"),
    cluster("spec.agentPort", PORT, "9216", "port of each agent's read and stream endpoints; stays").default("9116"),
    cluster("spec.apiPort", PORT, "9215", "port of the API; stays").default("9115"),
    cluster("spec.etcdPeerPort", PORT, "12380", "port between etcd members; stays").default("2380"),
    cluster("spec.etcdClientPort", PORT, "12379", "port of etcd's clients; stays").default("2379"),
    cluster("spec.wireguardPort", PORT, "51821", "UDP port of WireGuard; stays").default("51820"),
    cluster("spec.volumeBasePath", Text, "/srv/kat/volumes", "where simple cluster storage lies").default("/var/lib/kat/volumes"),
    cluster("spec.backupPath", Text, "/srv/kat/backups", "where the leader keeps backups: below /var/lib, /srv or /mnt").default("/var/lib/kat/backups"),
    cluster("spec.backupRetention", Integer(1, 1000), "10", "backups kept").default("5"),
    cluster("spec.backupIntervalMinutes", Integer(1, 10_080), "60", "minutes between backups").default("30"),
    cluster("spec.agentTickSeconds", Integer(1, 3600), "5", "seconds between heartbeats").default("15"),
    cluster("spec.nodeLossTimeoutSeconds", Integer(3, 86_400), "90", "seconds without a heartbeat after which a node is NotReady; at least three ticks").default("60"),
    cluster("spec.mtu", Integer(1280, 9000), "1380", "MTU of the overlay").default("1420"),

    agent("reserved", Mapping, "{cpu: 100m}", "kept back from workloads"),
    agent("reserved.cpu", Processor, "200m", "processor time"),
    agent("reserved.memory", Size, "256Mi", "memory"),
    agent("upstreamDNS", TextList, "[192.0.2.1]", "where names outside the cluster are asked; the machine's resolvers unless written").default("[]"),
    agent("hostMountAllow", TextList, "[/srv]", "folders below which host paths may be mounted").default("[/srv, /mnt, /var/lib/kat/host]"),
    agent("hostMountCreate", TextList, "[/srv/data]", "folders below which KAT makes missing host paths (DirectoryOrCreate, FileOrCreate), beside /var/lib/kat/host/NAMESPACE; hostMountAllow must have them too; no others unless written, but for what workloads had here before an upgrade"),
    agent("devicesAllow", TextList, "[/dev/ttyUSB0, /dev/dri]", "devices that containers may have, or folders of them; a block device only where it is named itself; none unless written, but for what workloads had here before an upgrade"),
    agent("groupsAllow", TextList, "[dialout]", "groups of the machine that the users of workloads may join; none unless written, but for those that workloads had here before an upgrade"),
    agent("hostNetworkAllow", Boolean, "true", "containers may share the machine's network").default("false"),
    agent("securityAllow", TextList, "[newPrivileges, SYS_ADMIN]", "what containers may have beyond Podman's confinement: seccomp (no filter of system calls), unmask, newPrivileges, selinux (no label, or another), names of capabilities, or capabilities for all of them; Podman's default capabilities, NET_ADMIN, NET_RAW and SYS_PTRACE they may have anyway; nothing unless written, but for what workloads had here before an upgrade"),
    agent("hostPortsAllow", TextList, "[80, 443, 30000-32767]", "ports of this machine that hostPort may lead to workloads; [80, 443, 1024-65535] unless written, and what workloads had here before an upgrade"),
    agent("hostPortLoopback", Boolean, "true", "host ports lead to workloads for this machine's own programs that call 127.0.0.1, too; false unless written, but for workloads that had it here before an upgrade"),
    agent("volumeShared", Boolean, "true", "the volume base path is the same network file system on every machine").default("false"),
    agent("wireguardPort", PORT, "51821", "UDP port of WireGuard on this machine; the cluster's unless written"),
    agent("images", Mapping, "{keepDays: 30}", "how long images stay that nothing uses; where disk space runs short they go at once, the oldest first"),
    agent("images.keepDays", Integer(0, 3650), "30", "days that those of a workload stay that has left this machine, so that its return pulls nothing").default("7"),
    agent("images.oldHours", Integer(0, 87_600), "48", "hours that one stays of a version that is neither wanted nor gone back to").default("24"),
    agent("diskFree", Size, "5Gi", "bytes that are to be free on the file systems that KAT writes to; with less nothing new comes to this machine; unless written a tenth of each, at most 10Gi; 0: it does not matter"),
    agent("endpoints", TextList, "[\"home.example.org:51820\"]", "host:port at which other machines reach this one's WireGuard").default("[]"),
];
