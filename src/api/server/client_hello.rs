//! The server name of a TLS connection, read before anything is answered: it decides whether this
//! machine answers or forwards the connection unopened.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use rustls::server::Acceptor;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf},
    net::TcpStream,
};

use super::HANDSHAKE_RECORD;

/// Largest first flight of a client in bytes: one TLS record and its header (RFC 8446 5.1).
const MOST: usize = 16 * 1024 + 5;

/// A connection of which the first bytes were read already; reading returns them again.
#[derive(Debug)]
pub(crate) struct ReplayedStream {
    stream: TcpStream,
    first: Vec<u8>,
    /// Number of the first bytes that were returned.
    returned: usize,
}

impl From<TcpStream> for ReplayedStream {
    fn from(stream: TcpStream) -> Self {
        Self {
            stream,
            first: Vec::new(),
            returned: 0,
        }
    }
}

impl ReplayedStream {
    /// Reads the client's first flight, and returns the server name in it. `None` for a client that
    /// does not speak TLS, or names no server, or ends early.
    ///
    /// # Errors
    /// The connection breaks.
    pub(crate) async fn server_name(&mut self) -> io::Result<Option<String>> {
        let mut acceptor = Acceptor::default();
        let mut piece = [0; 4096];
        while self.first.len() < MOST {
            let count = self.stream.read(&mut piece).await?;
            let read = piece.get(..count).unwrap_or_default();
            self.first.extend_from_slice(read);
            if read.is_empty() || self.first.first() != Some(&HANDSHAKE_RECORD) {
                return Ok(None);
            }
            let mut rest = read;
            while !rest.is_empty() {
                if acceptor.read_tls(&mut rest)? == 0 {
                    return Ok(None);
                }
            }
            match acceptor.accept() {
                Ok(None) => {}
                Ok(Some(accepted)) => {
                    let name = accepted.client_hello().server_name().map(str::to_owned);
                    return Ok(name);
                }
                // The handshake itself answers with the error.
                Err(_) => return Ok(None),
            }
        }
        Ok(None)
    }

    /// The connection itself, to set its options.
    pub(crate) fn socket(&self) -> &TcpStream {
        &self.stream
    }

    /// The first byte; `None` if the client has ended the connection.
    ///
    /// # Errors
    /// The connection breaks.
    pub(crate) async fn first_byte(&self) -> io::Result<Option<u8>> {
        if let Some(first) = self.first.first() {
            return Ok(Some(*first));
        }
        let mut first = [0];
        let count = self.stream.peek(&mut first).await?;
        let [byte] = first;
        Ok((count > 0).then_some(byte))
    }

    /// Discards what has arrived.
    pub(crate) fn discard(&mut self) {
        self.returned = self.first.len();
        let mut rest = [0u8; 4096];
        let _ = self.stream.try_read(&mut rest);
    }
}

impl AsyncRead for ReplayedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let rest = this.first.get(this.returned..).unwrap_or_default();
        if rest.is_empty() {
            return Pin::new(&mut this.stream).poll_read(context, buffer);
        }
        let count = rest.len().min(buffer.remaining());
        buffer.put_slice(rest.get(..count).unwrap_or_default());
        this.returned += count;
        if this.returned == this.first.len() {
            this.first = Vec::new();
            this.returned = 0;
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for ReplayedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::{io::AsyncWriteExt, net::TcpListener, time::timeout};

    use super::*;

    async fn connected() -> (TcpStream, ReplayedStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap());
        let (client, accepted) = tokio::join!(client, listener.accept());
        (client.unwrap(), accepted.unwrap().0.into())
    }

    fn hello(name: &str) -> Vec<u8> {
        let provider = rustls::crypto::aws_lc_rs::default_provider();
        let config = rustls::ClientConfig::builder_with_provider(provider.into())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_root_certificates(rustls::RootCertStore::empty())
            .with_no_client_auth();
        let name = rustls::pki_types::ServerName::try_from(name.to_owned()).unwrap();
        let mut client = rustls::ClientConnection::new(config.into(), name).unwrap();
        let mut bytes = Vec::new();
        client.write_tls(&mut bytes).unwrap();
        bytes
    }

    #[tokio::test]
    async fn the_name_is_found_however_the_bytes_arrive_and_nothing_is_lost() {
        let bytes = hello("state.kat.3f0c");
        for cut in [1, 7, bytes.len() / 2, bytes.len()] {
            let (mut client, mut server) = connected().await;
            let sent = bytes.clone();
            let sending = tokio::spawn(async move {
                client.set_nodelay(true).unwrap();
                for piece in sent.chunks(cut) {
                    client.write_all(piece).await.unwrap();
                    tokio::task::yield_now().await;
                }
                client.write_all(b"after").await.unwrap();
                client.shutdown().await.unwrap();
                client
            });
            let name = server.server_name().await.unwrap();
            assert_eq!(name.as_deref(), Some("state.kat.3f0c"));
            let mut all = Vec::new();
            server.read_to_end(&mut all).await.unwrap();
            assert_eq!(all, [&bytes[..], b"after"].concat());
            drop(sending.await.unwrap());
        }
    }

    #[tokio::test]
    async fn a_client_without_a_name_or_without_tls_is_passed_on_whole() {
        let unfinished = &hello("state.kat.3f0c")[..40];
        for first in [
            &b"GET / HTTP/1.1\r\n\r\n"[..],
            b"\x16\x03\x01\xff\xff",
            unfinished,
            b"",
        ] {
            let (mut client, mut server) = connected().await;
            client.write_all(first).await.unwrap();
            client.shutdown().await.unwrap();
            let named = timeout(Duration::from_secs(30), server.server_name());
            assert_eq!(named.await.unwrap().unwrap(), None);
            let mut all = Vec::new();
            server.read_to_end(&mut all).await.unwrap();
            assert_eq!(all, first);
        }
    }
}
