//! Proofs by DNS: where a challenge is answered, the record with its answer (RFC 2136), and whether the
//! zone's name servers have it.
//!
//! The server of the settings is asked with signed questions, so that it shows what it shows to the key.
//! What others answer is not believed to be more than a reason to wait.

mod exchange;
#[cfg(any(test, fuzzing))]
pub(super) mod fuzz;
mod hook;
#[cfg(test)]
mod tests;
mod tsig;

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use futures_util::future::join_all;
use hickory_proto::{
    op::{Message, OpCode, Query, ResponseCode},
    rr::{DNSClass, Name, RData, Record, RecordType, rdata::TXT},
};
use ipnet::Ipv4Net;
use tokio::time::timeout;

use super::name_check::is_asked;
use exchange::{Answer, Patience, exchange};
pub(super) use hook::HookedRecords;
pub use hook::{DnsHooks, HookChange, HookFailure, LONGEST_HOOK};
use kat_plan::{
    AcmeFailure, AcmeFailureKind, AcmeReply, AcmeRequest, DnsAccess, DnsKey, RecordCheck,
};
use kat_types::store::acme::{DnsPlace, is_token};
use tsig::SignatureFault;

/// Port of name servers.
const PORT: u16 = 53;
/// Longest question with all that it takes.
const WHOLE: Duration = Duration::from_secs(45);
/// Longest wait for the machine's resolver.
const RESOLVE: Duration = Duration::from_secs(5);
/// Most CNAME records that are followed.
const MOST_ALIASES: usize = 8;
/// Most name servers of a zone that are asked, and most addresses of each.
const MOST_SERVERS: usize = 8;
const MOST_ADDRESSES: usize = 2;
/// Time to live of the records, in seconds.
const TTL: u32 = 60;
/// The machine's name servers, and the longest such file that is read.
const RESOLV_CONF: &str = "/etc/resolv.conf";
const LONGEST_CONF: u64 = 64 << 10;
/// A text that no challenge has.
const TRIAL: &str = "kat-tries-whether-it-may-change-this-record";

/// Carries out a question of DNS; `None` for any other.
pub(super) async fn ask(request: &AcmeRequest, hooked: &Arc<HookedRecords>) -> Option<AcmeReply> {
    if !matches!(
        request,
        AcmeRequest::Locate { .. }
            | AcmeRequest::LocateForHook { .. }
            | AcmeRequest::Record { .. }
            | AcmeRequest::Remove { .. }
    ) {
        return None;
    }
    let resolvers = tokio::task::spawn_blocking(machine_resolvers).await;
    let client = DnsClient {
        patience: Patience::default(),
        resolvers: resolvers.unwrap_or_default(),
        clock: seconds_since_1970,
        hooked: Arc::clone(hooked),
    };
    let answered = timeout(WHOLE, client.ask(request)).await;
    let answered = answered.unwrap_or_else(|_| {
        let message = "the zone's name servers took longer than 45 s to answer";
        Some(Err(passing(message.to_owned())))
    })?;
    Some(answered.unwrap_or_else(AcmeReply::Failed))
}

fn seconds_since_1970() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| now.as_secs())
}

/// The name servers of the machine, at most three as the C library has them.
fn machine_resolvers() -> Vec<SocketAddr> {
    use std::io::Read;
    let mut text = String::new();
    let read = std::fs::File::open(RESOLV_CONF)
        .and_then(|file| file.take(LONGEST_CONF).read_to_string(&mut text));
    match read {
        Ok(_) => resolvers_in(&text),
        Err(_) => Vec::new(),
    }
}

fn resolvers_in(text: &str) -> Vec<SocketAddr> {
    let servers = text.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let address = words.next().filter(|word| *word == "nameserver");
        let address: IpAddr = address.and(words.next())?.parse().ok()?;
        Some(SocketAddr::new(address, PORT))
    });
    servers.take(3).collect()
}

/// A failure that another attempt does not pass: the settings, the server or its zone must change.
fn lasting(message: String) -> AcmeFailure {
    AcmeFailure {
        kind: AcmeFailureKind::Name,
        message,
        retry_after: None,
    }
}

fn passing(message: String) -> AcmeFailure {
    AcmeFailure {
        kind: AcmeFailureKind::NameServer,
        ..lasting(message)
    }
}

/// A signed answer, or an error without a signature, and then without records.
struct ServerAnswer {
    /// The server in words.
    server: String,
    message: Message,
}

impl ServerAnswer {
    fn code(&self) -> ResponseCode {
        self.message.metadata.response_code
    }
}

/// Where a name is.
enum Located {
    /// In this zone of the server.
    Zone(Name),
    /// It stands for this name.
    Alias(Name),
    /// In no zone of the server, which says so.
    Elsewhere(String),
}

struct DnsClient {
    patience: Patience,
    resolvers: Vec<SocketAddr>,
    /// Seconds since 1970.
    clock: fn() -> u64,
    hooked: Arc<HookedRecords>,
}

impl DnsClient {
    async fn ask(&self, request: &AcmeRequest) -> Option<Result<AcmeReply, AcmeFailure>> {
        Some(match request {
            AcmeRequest::Locate { name, own, others } => {
                self.locate(name, own, others).await.map(AcmeReply::Located)
            }
            AcmeRequest::LocateForHook { name, zone, hook } => {
                let located = self.locate_for_hook(name, zone, hook).await;
                located.map(AcmeReply::Located)
            }
            AcmeRequest::Record {
                place,
                value,
                key,
                own,
                ..
            } => {
                let recorded = match key {
                    Some(key) => self.record(place, value, key, own).await,
                    None => self.record_by_hook(place, value, own).await,
                };
                recorded.map(AcmeReply::Recorded)
            }
            AcmeRequest::Remove { place, value, key } => {
                let removed = match key {
                    Some(key) => self.update(place, value, key, Change::Remove).await,
                    None => self.hooked.remove(place, value).await,
                };
                removed.map(|()| AcmeReply::Removed)
            }
            _ => return None,
        })
    }

    /// Follows CNAME records to a zone whose server takes updates with its key.
    async fn locate(
        &self,
        name: &str,
        own: &DnsAccess,
        others: &[DnsAccess],
    ) -> Result<DnsPlace, AcmeFailure> {
        let mut at = name_of(name)?;
        let mut access = own;
        let zones = || others.iter().chain([own]);
        for _ in 0..=MOST_ALIASES {
            let target = match self.zone_at(access, &at).await? {
                Located::Zone(zone) => {
                    let text = text_of(&at);
                    // Whoever has a part of the zone may lead the name anywhere.
                    if !zones().any(|one| is_below(&text, &one.zone)) {
                        return Err(lasting(format!(
                            "{name} stands for {text}, which is in no zone of acme.dns whose key can be read"
                        )));
                    }
                    let place = DnsPlace {
                        server: access.server.clone(),
                        secret: access.secret.clone(),
                        zone: text_of(&zone),
                        name: text,
                        hook: None,
                    };
                    self.try_place(&place, &access.key).await?;
                    return Ok(place);
                }
                Located::Alias(target) => target,
                Located::Elsewhere(why) => match self.alias_by_resolver(&at).await? {
                    Some(target) => target,
                    None => return Err(lasting(why)),
                },
            };
            let text = text_of(&target);
            if !is_plain(&text) {
                return Err(lasting(format!(
                    "{} stands for `{text}`, which is no name for a record: it may have letters, digits, `-`, `_` and `.`",
                    text_of(&at)
                )));
            }
            let meant = zones().filter(|one| is_below(&text, &one.zone));
            access = meant.max_by_key(|one| one.zone.len()).unwrap_or(access);
            at = target;
        }
        Err(lasting(format!(
            "more than {MOST_ALIASES} CNAME records follow {name}"
        )))
    }

    /// Asks the server of the settings which of its zones has a name.
    async fn zone_at(&self, access: &DnsAccess, name: &Name) -> Result<Located, AcmeFailure> {
        let asked = query(name, RecordType::SOA);
        let answer = self.signed(&access.server, &access.key, asked).await?;
        let ServerAnswer { server, message } = &answer;
        let code = answer.code();
        let is_known = matches!(code, ResponseCode::NoError | ResponseCode::NXDomain);
        if code == ResponseCode::ServFail {
            return Err(passing(format!("{server} fails (SERVFAIL)")));
        }
        if !is_known || !message.metadata.authoritative {
            let why = match is_known {
                true => String::new(),
                false => format!(" ({})", word(code)),
            };
            return Ok(Located::Elsewhere(format!(
                "{server} is no name server of the zone of {}{why}, and the name has no CNAME record that points to another zone",
                text_of(name)
            )));
        }
        if let Some(target) = alias(&message.answers, name) {
            return Ok(Located::Alias(target));
        }
        match zone_in(message, name) {
            Some(zone) => Ok(Located::Zone(zone)),
            None => Err(lasting(format!(
                "{server} does not say in which zone {} is",
                text_of(name)
            ))),
        }
    }

    /// The CNAME record of a name of which the server of the settings knows nothing.
    async fn alias_by_resolver(&self, name: &Name) -> Result<Option<Name>, AcmeFailure> {
        match self.resolved(name, RecordType::CNAME).await {
            Ok(answer) => Ok(alias(&answer.answers, name)),
            Err(last) => Err(passing(format!(
                "the leader's name servers do not say whether {} has a CNAME record: {last}",
                text_of(name)
            ))),
        }
    }

    /// The answer of the first of the machine's name servers that has one; else why the last had none.
    async fn resolved(&self, name: &Name, kind: RecordType) -> Result<Message, String> {
        let mut last = "it has none".to_owned();
        for at in &self.resolvers {
            let mut asked = query(name, kind);
            asked.metadata.recursion_desired = true;
            match self.plain(*at, &asked).await {
                Ok(answer) => match answer.message.metadata.response_code {
                    ResponseCode::NoError | ResponseCode::NXDomain => return Ok(answer.message),
                    other => last = format!("{} answers {}", at.ip(), word(other)),
                },
                Err(why) => last = format!("{}: {why}", at.ip()),
            }
        }
        Err(last)
    }

    /// Whether the key may change the record: the removal of a text that is not there changes nothing.
    /// Other records at the name are someone else's.
    async fn try_place(&self, place: &DnsPlace, key: &DnsKey) -> Result<(), AcmeFailure> {
        let (server, texts) = self.texts(place, key).await?;
        let foreign = texts
            .iter()
            .any(|text| !(is_token(text) && text.len() == 43));
        if foreign {
            return Err(lasting(format!(
                "{} has a record TXT at {server} that answers no challenge: a CNAME record must point to a name of its own",
                place.name
            )));
        }
        self.update(place, TRIAL, key, Change::Remove).await
    }

    /// The texts that the server of the settings has at a place.
    async fn texts(
        &self,
        place: &DnsPlace,
        key: &DnsKey,
    ) -> Result<(String, Vec<String>), AcmeFailure> {
        let name = name_of(&place.name)?;
        let asked = query(&name, RecordType::TXT);
        let answer = self.signed(&place.server, key, asked).await?;
        match answer.code() {
            ResponseCode::NoError | ResponseCode::NXDomain => {
                let texts = texts(&answer.message.answers, &name);
                Ok((answer.server, texts))
            }
            code => {
                let (server, word) = (&answer.server, word(code));
                let message = format!(
                    "{server} answers the question for {} with {word}",
                    place.name
                );
                Err(match code {
                    ResponseCode::ServFail => passing(message),
                    _ => lasting(message),
                })
            }
        }
    }

    async fn update(
        &self,
        place: &DnsPlace,
        value: &str,
        key: &DnsKey,
        change: Change,
    ) -> Result<(), AcmeFailure> {
        let (zone, name) = (name_of(&place.zone)?, name_of(&place.name)?);
        let text = RData::TXT(TXT::new(vec![value.to_owned()]));
        let mut record = Record::from_rdata(name, TTL, text);
        if change == Change::Remove {
            record.ttl = 0;
            record.dns_class = DNSClass::NONE;
        }
        let mut asked = query(&zone, RecordType::SOA);
        asked.metadata.op_code = OpCode::Update;
        asked.authorities.push(record);
        let answer = self.signed(&place.server, key, asked).await?;
        let (server, zone, name) = (&answer.server, &place.zone, &place.name);
        let code = answer.code();
        let word = word(code);
        Err(match code {
            ResponseCode::NoError => return Ok(()),
            ResponseCode::ServFail => {
                passing(format!("{server} fails to update the zone {zone} ({word})"))
            }
            ResponseCode::Refused => lasting(format!(
                "{server} refuses the update of {name} ({word}): the zone {zone} must allow the key {} to change TXT records of this name",
                key.name
            )),
            ResponseCode::NotAuth => lasting(format!(
                "{server} takes no updates of the zone {zone} ({word}): it is not the primary server of the zone, or takes none with the key {}",
                key.name
            )),
            ResponseCode::NotImp => lasting(format!("{server} takes no updates ({word})")),
            _ => lasting(format!("{server} answers the update of {name} with {word}")),
        })
    }

    /// Adds the record and asks every name server of the zone for it.
    async fn record(
        &self,
        place: &DnsPlace,
        value: &str,
        key: &DnsKey,
        own: &[Ipv4Net],
    ) -> Result<RecordCheck, AcmeFailure> {
        self.update(place, value, key, Change::Add).await?;
        let mut check = RecordCheck::default();
        let (server, there) = self.texts(place, key).await?;
        if !there.iter().any(|text| text == value) {
            check.missing.push(server);
        }
        let zone = name_of(&place.zone)?;
        let servers = match self
            .signed(&place.server, key, query(&zone, RecordType::NS))
            .await
        {
            Ok(answer) => servers(&answer.message.answers, &zone),
            Err(failure) => {
                check.silent.push(failure.message);
                Vec::new()
            }
        };
        let name = name_of(&place.name)?;
        let asked = servers.iter().take(MOST_SERVERS);
        let asked = asked.map(|host| self.ask_server(host, &name, value, own));
        for one in join_all(asked).await {
            check.missing.extend(one.missing);
            check.silent.extend(one.silent);
        }
        Ok(check)
    }

    /// Asks the addresses of a name server for the record.
    async fn ask_server(
        &self,
        host: &str,
        name: &Name,
        value: &str,
        own: &[Ipv4Net],
    ) -> RecordCheck {
        let mut check = RecordCheck::default();
        let found = timeout(RESOLVE, tokio::net::lookup_host((host, PORT))).await;
        let found: Vec<_> = match found {
            Ok(Ok(addresses)) => addresses.take(MOST_ADDRESSES).collect(),
            Ok(Err(_)) | Err(_) => Vec::new(),
        };
        if found.is_empty() {
            check.silent.push(format!("{host} (no address)"));
        }
        for at in found {
            let server = in_words(host, at);
            if !is_asked(at.ip().to_canonical(), own) {
                check.silent.push(format!("{server} (not asked)"));
                continue;
            }
            self.ask_address(&server, at, name, value, &mut check).await;
        }
        check
    }

    async fn ask_address(
        &self,
        server: &str,
        at: SocketAddr,
        name: &Name,
        value: &str,
        check: &mut RecordCheck,
    ) {
        match self.plain(at, &query(name, RecordType::TXT)).await {
            Err(_) => check.silent.push(server.to_owned()),
            Ok(answer) => match answer.message.metadata.response_code {
                ResponseCode::NoError | ResponseCode::NXDomain => {
                    let there = texts(&answer.message.answers, name);
                    if !there.iter().any(|text| text == value) {
                        check.missing.push(server.to_owned());
                    }
                }
                other => check.silent.push(format!("{server} ({})", word(other))),
            },
        }
    }

    /// Asks without a signature.
    async fn plain(&self, at: SocketAddr, asked: &Message) -> Result<Answer, String> {
        let bytes = asked.to_vec().map_err(|error| error.to_string())?;
        exchange(at, asked, &bytes, self.patience).await
    }

    /// Asks the server of the settings with a signature, at its first address that answers.
    async fn signed(
        &self,
        server: &str,
        key: &DnsKey,
        asked: Message,
    ) -> Result<ServerAnswer, AcmeFailure> {
        let found = timeout(RESOLVE, tokio::net::lookup_host(with_port(server))).await;
        let addresses: Vec<SocketAddr> = match found {
            Ok(Ok(addresses)) => addresses.take(MOST_ADDRESSES).collect(),
            Ok(Err(_)) | Err(_) => Vec::new(),
        };
        let mut last = passing(format!(
            "{server}, the server of acme.dns, has no address in DNS"
        ));
        for at in addresses {
            let server = in_words(server, at);
            let sent = tsig::sign(asked.clone(), key, (self.clock)());
            let sent = sent.map_err(lasting)?;
            let answer = match exchange(at, &asked, &sent.bytes, self.patience).await {
                Ok(answer) => answer,
                Err(why) => {
                    last = passing(format!("{server} does not answer: {why}"));
                    continue;
                }
            };
            let Answer { message, bytes } = answer;
            let code = message.metadata.response_code;
            let now = (self.clock)();
            return match tsig::check(&bytes, &message, key, &sent.mac, now) {
                Ok(()) => Ok(ServerAnswer { server, message }),
                // A server that refuses a question may not look at its key.
                Err(SignatureFault::Unsigned)
                    if !matches!(code, ResponseCode::NoError | ResponseCode::NXDomain) =>
                {
                    let mut message = message;
                    message.metadata.authoritative = false;
                    message.answers.clear();
                    message.authorities.clear();
                    Ok(ServerAnswer { server, message })
                }
                Err(fault) => Err(in_failure(&server, key, &fault)),
            };
        }
        Err(last)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    Add,
    Remove,
}

/// What is wrong with a signature, in words.
fn in_failure(server: &str, key: &DnsKey, fault: &SignatureFault) -> AcmeFailure {
    let name = &key.name;
    match fault {
        SignatureFault::Unsigned => lasting(format!(
            "{server} answers without a signature: it must know the key {name} (TSIG)"
        )),
        SignatureFault::UnknownKey => lasting(format!(
            "{server} does not know the key {name} with this algorithm (BADKEY)"
        )),
        SignatureFault::OtherSecret => lasting(format!(
            "{server} has another secret for the key {name} (BADSIG)"
        )),
        SignatureFault::Clocks(Some(seconds)) => lasting(format!(
            "the clocks of {server} and of the leader differ by {seconds} s (BADTIME)"
        )),
        SignatureFault::Clocks(None) => lasting(format!(
            "the clocks of {server} and of the leader differ (BADTIME)"
        )),
        SignatureFault::Forged => passing(format!(
            "an answer of {server} is not signed with the key {name}"
        )),
    }
}

fn query(name: &Name, kind: RecordType) -> Message {
    let mut message = Message::query();
    message.add_query(Query::query(name.clone(), kind));
    message.metadata.recursion_desired = false;
    message
}

fn name_of(text: &str) -> Result<Name, AcmeFailure> {
    let found = Name::from_ascii(text);
    let mut name = found.map_err(|_| lasting(format!("{text} is no name of DNS")))?;
    name.set_fqdn(true);
    Ok(name)
}

/// A name in lower case without its last dot.
fn text_of(name: &Name) -> String {
    let text = name.to_lowercase().to_ascii();
    text.trim_end_matches('.').to_owned()
}

/// Whether a name has no odd bytes, which texts of names escape, and is no wildcard.
fn is_plain(name: &str) -> bool {
    let is_used = |one: u8| one.is_ascii_alphanumeric() || b"-_.".contains(&one);
    !name.is_empty() && name.bytes().all(is_used)
}

fn is_below(name: &str, zone: &str) -> bool {
    let rest = name.strip_suffix(zone);
    rest.is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}

/// The zone of a name, by the SOA record of an answer or of its authority section.
fn zone_in(message: &Message, name: &Name) -> Option<Name> {
    let mut records = message.answers.iter().chain(&message.authorities);
    let zone = records.find(|one| {
        matches!(one.data, RData::SOA(_)) && !one.name.is_root() && one.name.zone_of(name)
    });
    zone.map(|found| found.name.to_lowercase())
}

/// What a name stands for.
fn alias(answers: &[Record], name: &Name) -> Option<Name> {
    answers.iter().find_map(|one| match &one.data {
        RData::CNAME(target) if one.name == *name => Some(target.0.clone()),
        _ => None,
    })
}

/// The texts of a name, or of what it stands for.
fn texts(answers: &[Record], name: &Name) -> Vec<String> {
    let mut at = name.clone();
    for _ in 0..MOST_ALIASES {
        match alias(answers, &at) {
            Some(target) => at = target,
            None => break,
        }
    }
    let own = answers.iter().filter(|one| one.name == at);
    own.filter_map(|one| match &one.data {
        RData::TXT(text) => Some(String::from_utf8_lossy(&text.txt_data.concat()).into_owned()),
        _ => None,
    })
    .collect()
}

/// The name servers of a zone.
fn servers(answers: &[Record], zone: &Name) -> Vec<String> {
    let own = answers.iter().filter(|one| one.name == *zone);
    let names = own.filter_map(|one| match &one.data {
        RData::NS(host) => Some(text_of(&host.0)),
        _ => None,
    });
    names.collect()
}

/// A server of the settings with its port.
fn with_port(server: &str) -> String {
    let after_address = server.rsplit_once(']').map_or(server, |(_, rest)| rest);
    match after_address.contains(':') {
        true => server.to_owned(),
        false => format!("{server}:{PORT}"),
    }
}

fn in_words(host: &str, at: SocketAddr) -> String {
    let address = match at.port() {
        PORT => at.ip().to_canonical().to_string(),
        _ => at.to_string(),
    };
    match host == address || host == at.to_string() {
        true => host.to_owned(),
        false => format!("{host} ({address})"),
    }
}

/// The name of a code, as name servers log it.
fn word(code: ResponseCode) -> String {
    match code {
        ResponseCode::NoError => "NOERROR".to_owned(),
        ResponseCode::FormErr => "FORMERR".to_owned(),
        ResponseCode::ServFail => "SERVFAIL".to_owned(),
        ResponseCode::NXDomain => "NXDOMAIN".to_owned(),
        ResponseCode::NotImp => "NOTIMP".to_owned(),
        ResponseCode::Refused => "REFUSED".to_owned(),
        ResponseCode::YXDomain => "YXDOMAIN".to_owned(),
        ResponseCode::YXRRSet => "YXRRSET".to_owned(),
        ResponseCode::NXRRSet => "NXRRSET".to_owned(),
        ResponseCode::NotAuth => "NOTAUTH".to_owned(),
        ResponseCode::NotZone => "NOTZONE".to_owned(),
        other => format!("code {}", u16::from(other)),
    }
}
