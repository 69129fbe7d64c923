//! `katcall port-forward`.

use std::{io, net::Ipv4Addr, time::Duration};

use bytes::Bytes;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, tcp},
    task::JoinSet,
};

use crate::{
    CliSession,
    args::PortForwardArgs,
    errors::CliError,
    references::{self, INSTANCES},
    target,
    target::InstanceRef,
};
use kat_client::{ApiRefusal, Client, ClientError, SessionInput, SessionOutput};
use kat_types::encoding::frames::{InputFrame, MOST, OutputFrame};

/// Most connections at once; further ones wait.
const MOST_CONNECTIONS: usize = 60;

/// Pause after a connection could not be accepted.
const PAUSE: Duration = Duration::from_secs(1);

/// A local port, and a port of the instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ports {
    /// 0 for any free port.
    local: u16,
    remote: u16,
}

/// Parses `LOCAL:PORT`, or `PORT` for the same number on both sides.
pub(crate) fn parse_ports(text: &str) -> Result<Ports, String> {
    let (local, remote) = text.split_once(':').unwrap_or((text, text));
    let port = |text: &str| text.parse::<u16>().ok();
    match (port(local), port(remote)) {
        (Some(local), Some(remote)) if remote != 0 => Ok(Ports { local, remote }),
        _ => Err(format!(
            "`{text}` is neither LOCAL:PORT nor PORT, such as 8080:80"
        )),
    }
}

/// Forwards connections until it is interrupted.
pub(crate) async fn run(
    session: &CliSession<'_>,
    arguments: &PortForwardArgs,
) -> Result<(), CliError> {
    let object = references::one(&arguments.name, INSTANCES, &arguments.namespace)?;
    let mut target = target::find(session, &object).await?;
    let Ports { local, remote } = arguments.ports;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, local))
        .await
        .map_err(|error| taken(arguments.ports, &error))?;
    let at = listener.local_addr()?;
    session.console.note(&format!(
        "{at} forwards to port {remote} of `{}`; Ctrl-C ends it",
        target.id
    ));
    let mut open: JoinSet<Result<(), ClientError>> = JoinSet::new();
    loop {
        let room = open.len() < MOST_CONNECTIONS;
        tokio::select! {
            accepted = listener.accept(), if room => match accepted {
                Ok((stream, _)) => {
                    let client = session.client.clone();
                    open.spawn(carry(client, target.clone(), remote, stream));
                }
                // The error may concern only this connection, or go away when another connection
                // ends.
                Err(error) => {
                    session.console.warning(&format!("a connection is not taken yet: {error}"));
                    tokio::time::sleep(PAUSE).await;
                }
            },
            Some(ended) = open.join_next() => if let Ok(Err(error)) = ended {
                session.console.warning(&error.to_string());
                // The instance may have been replaced by another one.
                if let Ok(found) = target::find(session, &object).await
                    && found != target
                {
                    session.console.note(&format!("from now on to `{}`", found.id));
                    target = found;
                }
            },
        }
    }
}

fn taken(ports: Ports, error: &io::Error) -> CliError {
    let Ports {
        local: port,
        remote,
    } = ports;
    match error.kind() {
        io::ErrorKind::AddrInUse => CliError::failed(format!(
            "port {port} of 127.0.0.1 is taken by another program"
        ))
        .hinted(format!(
            "choose another one, such as 0 for any: `0:{remote}`"
        )),
        io::ErrorKind::PermissionDenied => {
            CliError::failed(format!("port {port} is for root alone"))
                .hinted("choose one from 1024 on, on the left of the colon")
        }
        _ => CliError::failed(format!("port {port} of 127.0.0.1: {error}")),
    }
}

/// Forwards one connection to its end.
async fn carry(
    client: Client,
    target: InstanceRef,
    port: u16,
    stream: TcpStream,
) -> Result<(), ClientError> {
    let InstanceRef {
        namespace,
        workload,
        id,
    } = &target;
    let (sending, receiving) = client.forward(namespace, workload, id, port).await?;
    let _ = stream.set_nodelay(true);
    let (from, to) = stream.into_split();
    tokio::select! {
        ended = show(receiving, to) => ended,
        () = send(from, &sending) => Ok(()),
    }
}

/// Sends the instance's output to the local connection until its end.
async fn show(
    mut receiving: SessionOutput,
    mut to: tcp::OwnedWriteHalf,
) -> Result<(), ClientError> {
    loop {
        match receiving.next().await? {
            OutputFrame::Data(data) => {
                if to.write_all(&data).await.is_err() {
                    return Ok(());
                }
            }
            OutputFrame::Error(_) => {}
            OutputFrame::Exit(_) => return Ok(()),
            OutputFrame::Failed(body) => {
                let refusal = ApiRefusal::of_stream(*body);
                return Err(ClientError::Refused(Box::new(refusal)));
            }
        }
    }
}

/// Sends the local connection's input to the instance. Returns when the connection is broken, not
/// at the end of its input.
async fn send(mut from: tcp::OwnedReadHalf, sending: &SessionInput) {
    let mut buffer = vec![0; MOST];
    loop {
        let Ok(length) = from.read(&mut buffer).await else {
            return;
        };
        let piece = buffer.get(..length).unwrap_or_default();
        if piece.is_empty() {
            sending.send(&InputFrame::End).await;
            return std::future::pending().await;
        }
        if !sending
            .send(&InputFrame::Data(Bytes::copy_from_slice(piece)))
            .await
        {
            return std::future::pending().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_one_or_two() {
        let ports = |local, remote| Ok(Ports { local, remote });
        assert_eq!(parse_ports("8080:80"), ports(8080, 80));
        assert_eq!(parse_ports("80"), ports(80, 80));
        assert_eq!(parse_ports("0:80"), ports(0, 80));
        for wrong in [
            "", ":", "80:", ":80", "80:0", "80:65536", "a:80", "1:2:3", "-1:80",
        ] {
            assert!(parse_ports(wrong).is_err(), "{wrong}");
        }
    }
}
