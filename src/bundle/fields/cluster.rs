//! The fields of `cluster.kat` and of `/etc/kat/agent.yaml`.

use super::{
    API_VERSION, Field,
    FieldType::{
        self, Boolean, Cidr, Integer, List, Mapping, Processor, Size, Text, TextList, Word,
    },
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
    cluster("kind", Word(&["ClusterConfiguration"]), "ClusterConfiguration", "kind of the document").required().identity(),
    cluster("metadata", Mapping, "{name: home}", "name of the cluster").required().identity(),
    cluster("metadata.name", Text, "home", "name: a DNS label of at most 40 characters").required().identity(),
    cluster("spec", Mapping, "{clusterCIDR: 10.100.0.0/16, serviceCIDR: 10.200.0.0/16}", "settings").required(),
    cluster("spec.clusterCIDR", Cidr, "10.64.0.0/16", "IPv4 range for machines and instances; fixed at init").required(),
    cluster("spec.serviceCIDR", Cidr, "10.65.0.0/16", "IPv4 range for service addresses; fixed at init").required(),
    cluster("spec.nodeSubnetBits", Integer(1, 16), "8", "bits by which the prefix of a machine's subnet is longer than that of clusterCIDR; fixed at init").default("7"),
    cluster("spec.clusterDomain", Text, "kat.internal", "domain of all names in the cluster; fixed at init").default("kat.cluster.local"),
    cluster("spec.agentPort", PORT, "9216", "TCP port of each agent for reads and streams; fixed at init").default("9116"),
    cluster("spec.apiPort", PORT, "9215", "TCP port of the API; fixed at init").default("9115"),
    cluster("spec.etcdPeerPort", PORT, "12380", "TCP port between etcd members; fixed at init").default("2380"),
    cluster("spec.etcdClientPort", PORT, "12379", "TCP port for clients of etcd; fixed at init").default("2379"),
    cluster("spec.wireguardPort", PORT, "51821", "UDP port of WireGuard; fixed at init").default("51820"),
    cluster("spec.volumeBasePath", Text, "/srv/kat/volumes", "directory of the volumes with simpleClusterStorage; fixed at init").default("/var/lib/kat/volumes"),
    cluster("spec.backupPath", Text, "/srv/kat/backups", "directory of the leader's backups: below /var/lib, /srv or /mnt").default("/var/lib/kat/backups"),
    cluster("spec.backupRetention", Integer(1, 1000), "10", "number of backups that are kept").default("5"),
    cluster("spec.backupIntervalMinutes", Integer(1, 10_080), "60", "minutes between backups").default("30"),
    cluster("spec.agentTickSeconds", Integer(1, 3600), "5", "seconds between heartbeats").default("15"),
    cluster("spec.nodeLossTimeoutSeconds", Integer(3, 86_400), "90", "seconds without a heartbeat after which a machine is NotReady; at least three times agentTickSeconds").default("60"),
    cluster("spec.mtu", Integer(1280, 9000), "1380", "MTU of the overlay").default("1420"),
    cluster("spec.isolation", Word(&["None", "Audit", "Namespaces"]), "Namespaces", "whether workloads reach those of other namespaces: None (they do), Audit (they do, and what Namespaces would refuse is listed) or Namespaces (they do not, unless allowed); init makes it Namespaces where it is left out").default("None"),
    cluster("spec.ingress", Mapping, "{accessLog: true}", "settings of the ingress"),
    cluster("spec.ingress.enabled", Boolean, "false", "serve routes").default("true"),
    cluster("spec.ingress.trustedProxies", TextList, "[192.0.2.0/24]", "addresses or ranges whose X-Forwarded-For is believed").default("[]"),
    cluster("spec.ingress.proxyProtocolFrom", TextList, "[192.0.2.1]", "addresses or ranges that must send a PROXY header").default("[]"),
    cluster("spec.ingress.internalDomains", TextList, "[example.lan]", "domains whose certificates KAT's own authority issues; default: the cluster's domain, local, lan, internal, home.arpa and test"),
    cluster("spec.ingress.accessLog", Boolean, "true", "log each request").default("false"),
    cluster("spec.acme", Mapping, "{agreeToTerms: true}", "certificates by ACME"),
    cluster("spec.acme.directory", Text, "https://acme.example.org/directory", "URL of the server's directory; default: that of Let's Encrypt"),
    cluster("spec.acme.email", Text, "admin@example.org", "address for the server's messages"),
    cluster("spec.acme.agreeToTerms", Boolean, "true", "agree to the server's terms; without it no certificate is ordered").default("false"),
    cluster("spec.acme.eab", Mapping, "{secret: acme-eab}", "account of the server's operator"),
    cluster("spec.acme.eab.secret", Text, "acme-eab", "secret of the namespace kat-core with the keys keyId and hmacKey").required(),
    cluster("spec.acme.profile", Text, "shortlived", "profile of the certificates").default("\"\""),
    cluster("spec.acme.dns", List, "[{zone: example.org, rfc2136: {server: ns1.example.org, tsig: {secret: dns-key}}}]", "how names are proved by DNS: wildcards, and all other hosts of these zones").default("[]"),
    cluster("spec.acme.dns[].zone", Text, "example.org", "the zone; its hosts are proved by DNS").required(),
    cluster("spec.acme.dns[].rfc2136", Mapping, "{server: ns1.example.org, tsig: {secret: dns-key}}", "by updates of the zone's server (RFC 2136); exactly one of rfc2136 and hook"),
    cluster("spec.acme.dns[].rfc2136.server", Text, "ns1.example.org", "host of the zone's primary server, with or without a port").required(),
    cluster("spec.acme.dns[].rfc2136.tsig", Mapping, "{secret: dns-key}", "key of the updates").required(),
    cluster("spec.acme.dns[].rfc2136.tsig.secret", Text, "dns-key", "secret of the namespace kat-core with the key tsig.key: what tsig-keygen prints, or ALGORITHM:NAME:SECRET").required(),
    cluster("spec.acme.dns[].hook", Text, "own-dns", "by the program /etc/kat/dns-hooks/NAME of the machine that leads; exactly one of rfc2136 and hook"),
    cluster("spec.virtualAddresses", List, "[{address: 192.0.2.9/24}]", "addresses of the machines' LAN that one machine at a time has, at most 16; not for networks whose provider routes addresses to machines").default("[]"),
    cluster("spec.virtualAddresses[].address", Text, "192.0.2.9/24", "address with the prefix of its network, which no other host has").required(),
    cluster("spec.virtualAddresses[].interface", Text, "eth0", "the machines' interface; auto is the one with an address of that network").default("auto"),
    cluster("spec.virtualAddresses[].onLeaderLoss", Word(&["keep", "release"]), "release", "what the holder does while it reaches no leader: keep the address, or release it before another machine may get it").default("keep"),

    agent("reserved", Mapping, "{cpu: 100m}", "resources that are reserved for the machine and not given to workloads"),
    agent("reserved.cpu", Processor, "200m", "processor time"),
    agent("reserved.memory", Size, "256Mi", "memory"),
    agent("upstreamDNS", TextList, "[192.0.2.1]", "DNS servers for names outside the cluster; default: the machine's resolvers").default("[]"),
    agent("hostMountAllow", TextList, "[/srv]", "directories below which host paths may be mounted").default("[/srv, /mnt, /var/lib/kat/host]"),
    agent("hostMountCreate", TextList, "[/srv/data]", "directories below which KAT creates missing host paths (DirectoryOrCreate, FileOrCreate), in addition to /var/lib/kat/host/NAMESPACE; hostMountAllow must contain them too; default: none, except paths that workloads had on this machine before an upgrade"),
    agent("devicesAllow", TextList, "[/dev/ttyUSB0, /dev/dri]", "devices that containers may use, or directories of devices; a block device must be named itself; default: none, except devices that workloads had on this machine before an upgrade"),
    agent("groupsAllow", TextList, "[dialout]", "groups of the machine that users of workloads may join; default: none, except groups that workloads had on this machine before an upgrade"),
    agent("hostNetworkAllow", Boolean, "true", "whether containers may use the machine's network namespace").default("false"),
    agent("securityAllow", TextList, "[newPrivileges, SYS_ADMIN]", "exceptions from Podman's confinement that workloads may request: seccomp (no filter of system calls), unmask, newPrivileges, selinux (no label, or another label), names of capabilities, or capabilities for all of them; Podman's default capabilities, NET_ADMIN, NET_RAW and SYS_PTRACE are always permitted; default: none, except what workloads had on this machine before an upgrade"),
    agent("hostPortsAllow", TextList, "[80, 443, 30000-32767]", "ports of this machine that hostPort may use; default: [80, 443, 1024-65535], and ports that workloads had on this machine before an upgrade"),
    agent("hostPortLoopback", Boolean, "true", "whether host ports also forward connections of this machine's programs to 127.0.0.1; default: false, except for workloads that had it on this machine before an upgrade"),
    agent("volumeShared", Boolean, "true", "whether the volume base path is the same network file system on every machine").default("false"),
    agent("wireguardPort", PORT, "51821", "UDP port of WireGuard on this machine; default: the cluster's"),
    agent("images", Mapping, "{keepDays: 30}", "how long unused images are kept; when disk space is low they are removed at once, the oldest first"),
    agent("images.keepDays", Integer(0, 3650), "30", "days for which images of a workload that has left this machine are kept").default("7"),
    agent("images.oldHours", Integer(0, 87_600), "48", "hours for which an image of a version that is neither running nor the last good one is kept").default("24"),
    agent("diskFree", Size, "5Gi", "free space required on each file system that KAT writes to; with less, no new instance is placed on this machine; default: a tenth of the file system, at most 10Gi; 0 disables the check"),
    agent("endpoints", TextList, "[\"home.example.org:51820\"]", "host:port at which other machines reach WireGuard on this machine").default("[]"),
    agent("machineAccessAllow", TextList, "[api]", "what of the machine containers may ask: api, metadata; default: nothing").default("[]"),
];
