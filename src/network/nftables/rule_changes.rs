//! Notices of the kernel that another program changed KAT's nftables tables.
//!
//! `nft flush ruleset`, which is also what a restart of `nftables.service` does, removes the tables of
//! all programs. The kernel sends each change to the group `NFNLGRP_NFTABLES`
//! (linux/netfilter/nfnetlink.h): a message for each object, and one for the whole transaction
//! (`NFT_MSG_NEWGEN`) with the program that made it.

use std::{collections::VecDeque, io, time::Duration};

use netlink_proto::sys::{
    AsyncSocket, AsyncSocketExt, SocketAddr, TokioSocket, protocols::NETLINK_NETFILTER,
};
use parking_lot::Mutex;
use rustix::io::Errno;
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;

use super::{firewall, host_ports, isolation, netfilter::attribute, service_addresses};
use kat_daemon::watchdog::LoopPulse;
use kat_types::backoff::{Backoff, Pauses};

/// `NFNLGRP_NFTABLES`, as a mask of groups.
const GROUP: u32 = 1 << (7 - 1);
/// `NFNL_SUBSYS_NFTABLES`, in the upper half of a message's type.
const SUBSYSTEM: u16 = 10 << 8;
/// `NFT_MSG_NEWGEN`: the end of a transaction.
const NEW_GENERATION: u16 = SUBSYSTEM | 15;
/// `NFPROTO_INET`, the family of KAT's tables.
const INET: u8 = 1;
/// The name of an object's table, which is the first attribute of each kind of object.
const NAME_OF_TABLE: u16 = 1;
/// `NFTA_GEN_PROC_PID` and `NFTA_GEN_PROC_NAME`.
const PROGRAM_PID: u16 = 2;
const PROGRAM_NAME: u16 = 3;
/// Sizes of `struct nlmsghdr` and `struct nfgenmsg`.
const MESSAGE_HEADER: usize = 16;
const BODY_HEADER: usize = 4;
/// KAT's tables.
const TABLES: [&str; 4] = [
    firewall::TABLE,
    service_addresses::TABLE,
    host_ports::TABLE,
    isolation::TABLE,
];

/// Changes within this time count as one.
const SETTLING: Duration = Duration::from_millis(50);
/// Pauses between repairs while another program continues to change the tables.
const PAUSES: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(10));
/// After this time without a change the pauses are short again.
const QUIET: Duration = Duration::from_secs(30);
/// Pause after notices that did not fit into the socket's buffer, and before a new socket.
const AFTER_LOSS: Duration = Duration::from_secs(1);
const AFTER_FAILURE: Duration = Duration::from_secs(5);
/// How many of the last changes of KAT's own are remembered.
const OWN_KEPT: usize = 64;

/// Numbers of the `nft` processes that KAT started last. The kernel names a process's first netlink
/// socket like the process.
static OWN: Mutex<VecDeque<u32>> = Mutex::new(VecDeque::new());

/// Remembers a process of KAT's own that is about to change tables.
pub(super) fn remember_own_process(pid: u32) {
    let mut own = OWN.lock();
    own.truncate(OWN_KEPT - 1);
    own.push_front(pid);
}

/// The changes of KAT's tables by other programs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RulesetChanges {
    /// How many changes were seen.
    pub seen: u64,
    /// The program of the last one.
    pub by: Option<ChangingProgram>,
    /// How often changes may have been missed: the tables have to be compared then.
    pub missed: u64,
}

/// A program that changed KAT's tables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangingProgram {
    pub name: String,
    /// Its number, as the kernel's first PID namespace has it.
    pub pid: u32,
}

/// What the kernel reports.
#[derive(Debug, Clone, PartialEq, Eq)]
enum RulesetNotice {
    /// Another program changed a table of KAT's.
    Changed(ChangingProgram),
    /// Some notices are lost: the socket's buffer was full.
    Lost,
}

/// Sends the changes of KAT's tables by other programs, until cancelled: soon after the first
/// change, and at growing intervals while the changes continue.
pub async fn follow_ruleset_changes(
    changes: watch::Sender<RulesetChanges>,
    pulse: LoopPulse,
    cancel: CancellationToken,
) {
    let mut pace = RepairPace::default();
    let mut failed = false;
    let missed = || changes.send_modify(|changes| changes.missed += 1);
    while !cancel.is_cancelled() {
        let error = match RulesetNotices::open() {
            Err(error) => error,
            Ok(mut notices) => {
                // Something may have changed before the socket was open.
                missed();
                loop {
                    let notice = pulse.wait(async {
                        tokio::select! {
                            () = cancel.cancelled() => None,
                            notice = notices.next() => Some(notice),
                        }
                    });
                    let pause = match notice.await {
                        None => return,
                        Some(Err(error)) => break error,
                        Some(Ok(RulesetNotice::Lost)) => {
                            sleep(SETTLING).await;
                            missed();
                            AFTER_LOSS
                        }
                        Some(Ok(RulesetNotice::Changed(by))) => {
                            let pause = pace.pause_after(&by);
                            sleep(SETTLING).await;
                            changes.send_modify(|changes| {
                                changes.seen += 1;
                                changes.by = Some(by);
                            });
                            pause
                        }
                    };
                    if cancel.run_until_cancelled(sleep(pause)).await.is_none() {
                        return;
                    }
                }
            }
        };
        if !failed {
            tracing::warn!("changes of nftables by other programs are seen late: {error}");
            failed = true;
        }
        pulse.beat();
        cancel.run_until_cancelled(sleep(AFTER_FAILURE)).await;
    }
}

/// Keeps a program that changes the tables in a loop from keeping the machine busy.
#[derive(Debug)]
struct RepairPace {
    pauses: Pauses,
    last: Option<Instant>,
    /// Whether the journal names the present loop of changes.
    told: bool,
}

impl Default for RepairPace {
    fn default() -> Self {
        Self {
            pauses: PAUSES.pauses(),
            last: None,
            told: false,
        }
    }
}

impl RepairPace {
    /// The pause after the repair of a change that happened now.
    fn pause_after(&mut self, by: &ChangingProgram) -> Duration {
        let now = Instant::now();
        let continues = self
            .last
            .is_some_and(|last| now.saturating_duration_since(last) < QUIET);
        self.last = Some(now);
        let (program, pid) = (&by.name, by.pid);
        if !continues {
            self.pauses.reset();
            self.told = false;
            tracing::warn!(
                program,
                pid,
                "{program} (process {pid}) changed KAT's nftables rules; they are put back"
            );
        }
        let pause = self.pauses.next_pause();
        if pause == PAUSES.most && !self.told {
            self.told = true;
            tracing::warn!(
                program,
                pid,
                "{program} (process {pid}) changes KAT's nftables rules again and again; they are put back each {} s at most",
                PAUSES.most.as_secs()
            );
        }
        pause
    }
}

/// The kernel's notices about nftables, in the namespace of the thread that opened them.
struct RulesetNotices {
    socket: TokioSocket,
    transaction: Transaction,
    ready: VecDeque<RulesetNotice>,
}

impl RulesetNotices {
    fn open() -> io::Result<Self> {
        let mut socket = TokioSocket::new(NETLINK_NETFILTER)?;
        socket.socket_mut().bind(&SocketAddr::new(0, GROUP))?;
        Ok(Self {
            socket,
            transaction: Transaction::default(),
            ready: VecDeque::new(),
        })
    }

    async fn next(&mut self) -> io::Result<RulesetNotice> {
        loop {
            if let Some(notice) = self.ready.pop_front() {
                return Ok(notice);
            }
            match self.socket.recv_from_full().await {
                Ok((bytes, sender)) if sender.port_number() == 0 => {
                    let own = |port| OWN.lock().contains(&port);
                    self.ready.extend(self.transaction.read(&bytes, own));
                }
                // Only the kernel's messages count.
                Ok(_) => {}
                Err(error) if error.raw_os_error() == Some(Errno::NOBUFS.raw_os_error()) => {
                    self.transaction = Transaction::default();
                    return Ok(RulesetNotice::Lost);
                }
                Err(error) => return Err(error),
            }
        }
    }
}

/// What is known of a transaction whose end was not read yet.
#[derive(Debug, Default)]
struct Transaction {
    /// Another program changed a table of KAT's.
    foreign: bool,
}

impl Transaction {
    /// Reads a datagram, which has any number of messages; `own` recognises KAT's own sockets.
    fn read(&mut self, datagram: &[u8], own: impl Fn(u32) -> bool) -> Vec<RulesetNotice> {
        let mut notices = Vec::new();
        let mut rest = datagram;
        while let Some((message, after)) = next_message(rest) {
            rest = after;
            if message.kind == NEW_GENERATION {
                if std::mem::take(&mut self.foreign) {
                    notices.push(RulesetNotice::Changed(program(message.body)));
                }
            } else if message.kind & 0xff00 == SUBSYSTEM
                && names_own_table(message.body)
                && !own(message.port)
            {
                self.foreign = true;
            }
        }
        notices
    }
}

/// A netlink message.
struct Message<'a> {
    kind: u16,
    /// The socket whose request is the cause.
    port: u32,
    body: &'a [u8],
}

/// The first message of a datagram, and what follows it.
fn next_message(bytes: &[u8]) -> Option<(Message<'_>, &[u8])> {
    let word = |at: usize| {
        let bytes = bytes.get(at..at + 4)?;
        Some(u32::from_ne_bytes(bytes.try_into().ok()?))
    };
    let length = usize::try_from(word(0)?).ok()?;
    let message = Message {
        kind: u16::from_ne_bytes(bytes.get(4..6)?.try_into().ok()?),
        port: word(12)?,
        body: bytes.get(MESSAGE_HEADER..length)?,
    };
    let after = bytes.get(length.next_multiple_of(4)..);
    Some((message, after.unwrap_or_default()))
}

/// Whether an object is, or is in, a table of KAT's.
fn names_own_table(body: &[u8]) -> bool {
    let name = body
        .get(BODY_HEADER..)
        .and_then(|attributes| attribute(attributes, NAME_OF_TABLE))
        .map(|name| text(&name));
    body.first() == Some(&INET) && name.is_some_and(|name| TABLES.contains(&name.as_str()))
}

/// The program of a transaction.
fn program(body: &[u8]) -> ChangingProgram {
    let attributes = body.get(BODY_HEADER..).unwrap_or_default();
    let pid = attribute(attributes, PROGRAM_PID).and_then(|pid| pid.try_into().ok());
    let name = attribute(attributes, PROGRAM_NAME).map(|name| text(&name));
    ChangingProgram {
        name: name.unwrap_or_else(|| "a program".to_owned()),
        pid: pid.map_or(0, u32::from_be_bytes),
    }
}

/// A string that ends with a zero byte. A program can choose its name, so that control characters
/// are replaced.
fn text(bytes: &[u8]) -> String {
    let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    let text = String::from_utf8_lossy(text);
    text.chars()
        .map(|c| if c.is_control() { '?' } else { c })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEW_TABLE: u16 = SUBSYSTEM;
    const DELETE_RULE: u16 = SUBSYSTEM | 8;
    const NFT: u32 = 900;

    fn push(message: &mut Vec<u8>, kind: u16, value: &[u8]) {
        let length = u16::try_from(value.len() + 4).unwrap();
        message.extend(length.to_ne_bytes());
        message.extend(kind.to_ne_bytes());
        message.extend(value);
        message.resize(message.len().next_multiple_of(4), 0);
    }

    fn message(kind: u16, family: u8, attributes: &[(u16, &[u8])]) -> Vec<u8> {
        let mut body = vec![family, 0, 0, 0];
        for (kind, value) in attributes {
            push(&mut body, *kind, value);
        }
        let length = u32::try_from(MESSAGE_HEADER + body.len()).unwrap();
        let mut message = length.to_ne_bytes().to_vec();
        message.extend(kind.to_ne_bytes());
        message.extend([0; 6]);
        message.extend(NFT.to_ne_bytes());
        message.extend(body);
        message
    }

    fn object(kind: u16, family: u8, table: &str) -> Vec<u8> {
        let name = format!("{table}\0");
        message(kind, family, &[(NAME_OF_TABLE, name.as_bytes())])
    }

    fn end() -> Vec<u8> {
        let pid = 77_u32.to_be_bytes();
        let attributes: [(u16, &[u8]); 3] = [
            (1, &[0, 0, 0, 9]),
            (PROGRAM_PID, &pid),
            (PROGRAM_NAME, b"fire\x1bwall\0"),
        ];
        message(NEW_GENERATION, 0, &attributes)
    }

    fn changed() -> RulesetNotice {
        RulesetNotice::Changed(ChangingProgram {
            name: "fire?wall".into(),
            pid: 77,
        })
    }

    #[test]
    fn a_transaction_that_touches_a_table_of_kats_names_its_program() {
        let nobody = |_| false;
        for table in ["kat", "kat-services", "kat-host-ports", "kat-isolation"] {
            let mut transaction = Transaction::default();
            let datagram = [
                object(DELETE_RULE, INET, "docker"),
                object(DELETE_RULE, INET, table),
            ]
            .concat();
            assert_eq!(transaction.read(&datagram, nobody), []);
            assert_eq!(transaction.read(&end(), nobody), [changed()], "{table}");
            assert_eq!(transaction.read(&end(), nobody), [], "the next one");
        }
    }

    #[test]
    fn tables_of_others_and_transactions_of_kats_own_are_no_change() {
        let datagram = |kind, family, table| [object(kind, family, table), end()].concat();
        let nobody = |_| false;
        let mut transaction = Transaction::default();
        for (family, table) in [(INET, "docker"), (INET, "kat-other"), (2, "kat")] {
            let read = transaction.read(&datagram(NEW_TABLE, family, table), nobody);
            assert_eq!(read, [], "{family} {table}");
        }
        let of_conntrack = datagram((1 << 8) | 1, INET, "kat");
        assert_eq!(transaction.read(&of_conntrack, nobody), []);
        let ours = datagram(NEW_TABLE, INET, "kat");
        assert_eq!(transaction.read(&ours, |port| port == NFT), []);
        assert_eq!(transaction.read(&ours, nobody), [changed()]);
    }

    #[test]
    fn a_truncated_notice_is_read_as_far_as_it_goes() {
        let datagram = [object(NEW_TABLE, INET, "kat"), end()].concat();
        for length in 0..datagram.len() {
            let mut transaction = Transaction::default();
            let read = transaction.read(&datagram[..length], |_| false);
            assert_eq!(read, [], "{length} bytes");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_grow_while_changes_continue_and_are_short_again_after_quiet() {
        let by = ChangingProgram {
            name: "loop".into(),
            pid: 5,
        };
        let mut pace = RepairPace::default();
        let mut pauses = Vec::new();
        for _ in 0..8 {
            let pause = pace.pause_after(&by);
            pauses.push(pause.as_millis());
            sleep(pause).await;
        }
        assert_eq!(pauses, [200, 400, 800, 1600, 3200, 6400, 10_000, 10_000]);
        sleep(QUIET).await;
        assert_eq!(pace.pause_after(&by).as_millis(), 200);
    }

    #[test]
    fn only_the_last_processes_of_kats_own_are_remembered() {
        for pid in 0..u32::try_from(2 * OWN_KEPT).unwrap() {
            remember_own_process(pid);
        }
        let own = OWN.lock();
        assert_eq!(own.len(), OWN_KEPT);
        assert!(own.contains(&127) && !own.contains(&63));
    }
}
