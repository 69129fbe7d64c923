//! The state stream: what a machine without the store may see of it.

use super::{Client, ClientError, ClientOptions, RequestPath, send::ApiRequest, transport};
use kat_types::encoding::state_frames::{
    STATE_SCHEMA, StateFrame, StateFrameDecoder, StatePosition,
};

/// An open state stream.
#[derive(Debug)]
pub struct StateConnection {
    response: reqwest::Response,
    endpoint: String,
    decoder: StateFrameDecoder,
}

impl StateConnection {
    /// The next frame; `None` at the end of the stream. May be dropped and called again without
    /// losing anything.
    ///
    /// # Errors
    /// [`ClientError::Interrupted`] if the connection breaks, [`ClientError::Answer`] for bytes that
    /// can't be decoded.
    pub async fn next(&mut self) -> Result<Option<StateFrame>, ClientError> {
        loop {
            let frame = self.decoder.take();
            let frame = frame.map_err(|error| ClientError::Answer {
                endpoint: self.endpoint.clone(),
                reason: error.to_string(),
            })?;
            if frame.is_some() {
                return Ok(frame);
            }
            let piece = self.response.chunk().await;
            let piece = piece.map_err(|error| ClientError::Interrupted {
                endpoint: self.endpoint.clone(),
                reason: transport::reason(&error),
            })?;
            match piece {
                Some(piece) => self.decoder.push(&piece),
                None => return Ok(None),
            }
        }
    }

    /// The server's `host:port`.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }
}

impl Client {
    /// A client of the machines that serve the state stream, at `host:port`. `config` verifies the
    /// server; `server_name` says to forwarding machines that the connection is for the stream.
    ///
    /// # Errors
    /// As [`Client::from_connection`].
    pub fn of_state_server(
        endpoint: &str,
        server_name: &str,
        config: rustls::ClientConfig,
        options: ClientOptions,
    ) -> Result<Self, ClientError> {
        let endpoint = transport::agent(endpoint, server_name, config, options)?;
        Ok(Self::new(vec![endpoint], options))
    }

    /// Opens the state stream of a machine, after what it has already.
    pub async fn state_stream(
        &self,
        node: &str,
        resume: Option<StatePosition>,
    ) -> Result<StateConnection, ClientError> {
        let mut route = RequestPath::node_state(node)?.with("schema", &STATE_SCHEMA.to_string());
        if let Some(position) = resume {
            route = route
                .with("epoch", &position.epoch.to_string())
                .with("revision", &position.revision.to_string());
        }
        let (endpoint, response) = self.open(&ApiRequest::get(route)).await?;
        Ok(StateConnection {
            response,
            endpoint,
            decoder: StateFrameDecoder::default(),
        })
    }
}
