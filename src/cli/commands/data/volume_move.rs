//! `katcall volume`, and its `move`.

use std::time::Duration;

use clap::{Args, Subcommand};
use tokio::time::{Instant, sleep_until};

use crate::{
    CliSession,
    args::NamespaceOption,
    commands::{
        data::volume_forget::{self, ForgetArgs},
        reading::get,
    },
    errors::CliError,
    output::{one_line, plain},
    progress::ProgressDisplay,
    references::{self, VOLUMES},
    time, volumes,
    volumes::VolumeName,
};
use kat_client::KeyedItem as _;
use kat_types::api::{
    NodeItem, VolumeItem, VolumeMoveStatus, VolumeMoveStep, VolumePhase, WriteOutcome,
};

/// Interval of the progress requests.
const LOOK: Duration = Duration::from_secs(1);
/// Interval of lines in a pipe that differ only in numbers.
const SAY: Duration = Duration::from_secs(10);

/// What is done with volumes.
#[derive(Debug, Args)]
pub(crate) struct VolumeArgs {
    #[command(subcommand)]
    pub(crate) command: VolumeCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum VolumeCommand {
    /// Move the data of a volume to another machine: its instances stop and start there, and the old copy is kept for a
    /// day
    Move(MoveArgs),
    /// Give up data that a machine was to remove and does not find, because its disk is missing
    Forget(ForgetArgs),
}

#[derive(Debug, Args)]
pub(crate) struct MoveArgs {
    /// Volume, as WORKLOAD/VOLUME; volumes that must be on the same machine move with it
    #[arg(value_name = "[NAMESPACE/]WORKLOAD/VOLUME")]
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) namespace: NamespaceOption,
    /// Machine that receives the data
    #[arg(long, value_name = "NODE", required_unless_present = "cancel")]
    pub(crate) to: Option<String>,
    /// Cancel the move: the data stays on its machine, and its workload starts again there
    #[arg(long, conflicts_with_all = ["to", "no_wait"])]
    pub(crate) cancel: bool,
    /// Return without waiting for the move
    #[arg(long)]
    pub(crate) no_wait: bool,
    /// Time limit of the wait; the move continues after it
    #[arg(long, default_value = "1h", value_parser = time::parse_duration, value_name = "TIME")]
    pub(crate) timeout: Duration,
}

impl VolumeArgs {
    /// Whether the command waits for a move, which continues without it.
    pub(crate) fn waits(&self) -> bool {
        match &self.command {
            VolumeCommand::Move(arguments) => !arguments.cancel && !arguments.no_wait,
            VolumeCommand::Forget(_) => false,
        }
    }
}

pub(crate) async fn run(session: &CliSession<'_>, arguments: &VolumeArgs) -> Result<(), CliError> {
    match &arguments.command {
        VolumeCommand::Move(arguments) => run_move(session, arguments).await,
        VolumeCommand::Forget(arguments) => volume_forget::run(session, arguments).await,
    }
}

/// Exits with 1 when the move is given up, and with 5 after the timeout.
async fn run_move(session: &CliSession<'_>, arguments: &MoveArgs) -> Result<(), CliError> {
    let deadline = Instant::now() + arguments.timeout;
    let (client, console) = (&session.client, session.console);
    let reference = references::one(&arguments.name, VOLUMES, &arguments.namespace)?;
    let named = volumes::named(session, &reference).await?;
    let VolumeName {
        namespace,
        workload,
        name,
    } = &named;
    let short = named.without_namespace();
    if let Err(error) = client.volume(namespace, workload, name).await {
        let scope = Some(namespace.as_str());
        return Err(get::missing::<VolumeItem>(session, error, scope, &short).await);
    }
    let Some(to) = arguments.to.as_ref().filter(|_| !arguments.cancel) else {
        let done = client.cancel_volume_move(namespace, workload, name).await?;
        if done.outcome == WriteOutcome::Unchanged {
            console.note("it is not on its way anywhere");
        }
        return console.line(&format!("volume/{short} {}", done.outcome));
    };
    let asked = client.move_volume(namespace, workload, name, to).await;
    let asked = match asked {
        Err(error) if error.is_not_found() => {
            return Err(get::missing::<NodeItem>(session, error, None, to).await);
        }
        asked => asked?,
    };
    let all = client.volumes(Some(namespace)).await?.items;
    let mine = all.iter().find(|item| is_named(item, &named));
    let moving = mine.and_then(|item| item.status.moving.as_ref());
    let Some(moving) = moving else {
        // The volume has arrived, or was there before the first check.
        let word = match asked.outcome {
            WriteOutcome::Unchanged => "unchanged",
            _ => "moved",
        };
        return console.line(&format!("volume/{short} {word}"));
    };
    let along: Vec<String> = all
        .iter()
        .filter(|item| !is_named(item, &named) && belongs(item, moving))
        .map(|item| plain(&item.key().1))
        .collect();
    if !along.is_empty() {
        console.note(&format!(
            "with it moves {}: what has one of them has them all",
            along.join(", ")
        ));
    }
    if arguments.no_wait {
        return console.line(&format!("volume/{short} {}", asked.outcome));
    }
    follow(session, &named, moving, deadline).await
}

fn is_named(item: &VolumeItem, named: &VolumeName) -> bool {
    item.spec.workload == named.workload && item.metadata.name == named.name
}

fn belongs(item: &VolumeItem, moving: &VolumeMoveStatus) -> bool {
    let own = item.status.moving.as_ref();
    own.is_some_and(|own| own.id == moving.id)
}

/// Waits until the move ends or is given up.
async fn follow(
    session: &CliSession<'_>,
    named: &VolumeName,
    moving: &VolumeMoveStatus,
    deadline: Instant,
) -> Result<(), CliError> {
    let short = named.without_namespace();
    let mut progress = ProgressDisplay::start(session.console);
    let mut meter = SpeedMeter::default();
    let mut said: Option<(String, Instant)> = None;
    loop {
        let listed = session.client.volumes(Some(&named.namespace)).await;
        let all = match listed {
            Ok(list) => list.items,
            // The namespace was deleted with it.
            Err(error) if error.is_not_found() => Vec::new(),
            Err(error) => return Err(error.into()),
        };
        let going: Vec<&VolumeMoveStatus> = all
            .iter()
            .filter(|item| belongs(item, moving))
            .filter_map(|item| item.status.moving.as_ref())
            .collect();
        if going.is_empty() {
            drop(progress);
            let item = all.iter().find(|item| is_named(item, named));
            return ended(session, &short, item, moving);
        }
        let (words, numbers) = meter.text(&short, &going);
        let quiet = said.as_ref().is_some_and(|(before, at)| {
            *before == words && at.elapsed() < SAY && !session.console.interactive
        });
        if !quiet {
            progress.update(&format!("{words}{numbers}"));
            said = Some((words, Instant::now()));
        }
        if Instant::now() >= deadline {
            drop(progress);
            let command = format!("katcall get volume {short} -n {}", named.namespace);
            return Err(
                CliError::deadline(format!("volume `{short}` has not moved yet")).hinted(format!(
                    "the move continues; `{command} -o yaml` shows how far it is"
                )),
            );
        }
        sleep_until((Instant::now() + LOOK).min(deadline)).await;
    }
}

fn ended(
    session: &CliSession<'_>,
    short: &str,
    item: Option<&VolumeItem>,
    moving: &VolumeMoveStatus,
) -> Result<(), CliError> {
    let Some(item) = item.filter(|item| item.status.phase != VolumePhase::Removing) else {
        return Err(CliError::failed(format!(
            "volume `{short}` is being removed, or gone"
        )));
    };
    if item.status.node.as_deref() == Some(&moving.to) {
        for copy in &item.status.kept {
            let until = copy.until;
            let node = plain(&copy.node);
            session
                .console
                .note(&format!("the copy on {node} is kept until {until}"));
        }
        return session
            .console
            .line(&format!("volume/{short} moved to {}", plain(&moving.to)));
    }
    let error = CliError::failed(format!(
        "volume `{short}` did not move: its data is on {}",
        item.status.node.as_deref().unwrap_or("shared storage")
    ));
    Err(error.hinted("`katcall events` says who ended the move, or why it came to nothing"))
}

/// Measures the speed.
#[derive(Default)]
struct SpeedMeter {
    /// Time and bytes of the last check.
    last: Option<(Instant, u64)>,
    rate: Option<f64>,
}

impl SpeedMeter {
    /// The present step, and its progress in numbers.
    fn text(&mut self, short: &str, going: &[&VolumeMoveStatus]) -> (String, String) {
        let sum = |of: fn(&VolumeMoveStatus) -> u64| going.iter().map(|one| of(one)).sum::<u64>();
        let (bytes, total) = (sum(|one| one.bytes), sum(|one| one.total_bytes));
        let (files, total_files) = (sum(|one| one.files), sum(|one| one.total_files));
        let slowest = going.iter().min_by_key(|one| one.phase);
        let phase = slowest.map_or(VolumeMoveStep::Waiting, |one| one.phase);
        let why = going.iter().find(|one| !one.message.is_empty());
        let why = why.map_or_else(String::new, |one| format!(": {}", one_line(&one.message)));
        let to = slowest.map_or("", |one| one.to.as_str());
        let words = match phase {
            VolumeMoveStep::Stopping => format!("{short}: stopping what has it{why}"),
            VolumeMoveStep::Copying => format!("{short}: copying to {to}{why}"),
            VolumeMoveStep::Verifying => format!("{short}: comparing both copies"),
            VolumeMoveStep::Copied | VolumeMoveStep::Placing => {
                format!("{short}: taking the copy into use{why}")
            }
            VolumeMoveStep::Waiting => format!("{short}: {to} is about to copy it{why}"),
        };
        if !matches!(phase, VolumeMoveStep::Copying | VolumeMoveStep::Verifying) || total_files == 0
        {
            self.last = None;
            return (plain(&words), String::new());
        }
        let now = Instant::now();
        if let Some((at, before)) = self.last {
            let seconds = now.duration_since(at).as_secs_f64();
            let grown = u32::try_from(bytes.saturating_sub(before)).unwrap_or(u32::MAX);
            if bytes < before {
                // A new phase counts its bytes from 0.
                self.rate = None;
            } else if seconds > 0.0 {
                self.rate = Some(f64::from(grown) / seconds);
            }
        }
        self.last = Some((now, bytes));
        let rate = self.rate.map_or_else(String::new, |rate| {
            format!(", {:.1} MiB/s", rate / f64::from(1 << 20))
        });
        let numbers = format!(
            ", {files} of {total_files} files, {} of {} MiB{rate}",
            bytes >> 20,
            total.max(bytes).div_ceil(1 << 20),
        );
        (plain(&words), numbers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn progress_is_told_in_words_and_numbers() {
        let mut status = VolumeMoveStatus {
            to: "n2".to_owned(),
            phase: VolumeMoveStep::Copying,
            files: 3,
            bytes: 10 << 20,
            total_files: 10,
            total_bytes: 100 << 20,
            ..VolumeMoveStatus::default()
        };
        let mut meter = SpeedMeter::default();
        let (words, numbers) = meter.text("web/data", &[&status]);
        assert_eq!(
            (words.as_str(), numbers.as_str()),
            ("web/data: copying to n2", ", 3 of 10 files, 10 of 100 MiB")
        );
        tokio::time::advance(Duration::from_secs(2)).await;
        status.bytes = 50 << 20;
        let (_, numbers) = meter.text("web/data", &[&status]);
        assert_eq!(numbers, ", 3 of 10 files, 50 of 100 MiB, 20.0 MiB/s");
        status.phase = VolumeMoveStep::Waiting;
        status.message = "on n2: it takes 9 MiB,\nand 3 MiB are free".to_owned();
        let whole = VolumeMoveStatus {
            phase: VolumeMoveStep::Copied,
            ..VolumeMoveStatus::default()
        };
        let (words, numbers) = meter.text("web/data", &[&whole, &status]);
        assert_eq!(
            words,
            "web/data: n2 is about to copy it: on n2: it takes 9 MiB, | and 3 MiB are free"
        );
        assert_eq!(numbers, "");
    }
}
