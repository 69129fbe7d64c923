//! Sessions with the instances of the whole cluster: directly with those of this machine, and
//! through the other machines' agents with the others.

use std::sync::Arc;

use async_trait::async_trait;
use futures_util::{StreamExt, stream};

use crate::cluster::peer_agents::{PeerAgents, away};
use kat_api::{
    ApiError, InputFrames, InstanceSessions, OutputFrames, SessionError, SessionRequest,
};
use kat_client::{ClientError, SessionInput, SessionOutput};
use kat_types::{
    api::{NodeMeasurements, NodeUsage},
    encoding::frames::OutputFrame,
    store::snapshot::InstanceEntry,
};

/// Sessions with all instances of the cluster.
pub(crate) struct ClusterSessions {
    pub node: String,
    /// Sessions with this machine's instances.
    pub here: Arc<dyn InstanceSessions>,
    /// Connections to the other machines' agents.
    pub agents: PeerAgents,
}

#[async_trait]
impl InstanceSessions for ClusterSessions {
    async fn begin(
        &self,
        caller: Option<&str>,
        instance: &InstanceEntry,
        request: SessionRequest,
        inputs: InputFrames,
    ) -> Result<OutputFrames, SessionError> {
        let node = instance.node.clone();
        if node == self.node {
            return self.here.begin(caller, instance, request, inputs).await;
        }
        let client = self.agents.client(&node).await;
        let client = client.map_err(SessionError::Away)?;
        let client = client.for_caller(caller);
        let assignment = &instance.assignment.value;
        let (namespace, workload, id) = (
            assignment.namespace.as_str(),
            assignment.workload.as_str(),
            assignment.instance.as_str(),
        );
        let begun = match request {
            SessionRequest::Exec(request) => client.exec(namespace, workload, id, &request).await,
            SessionRequest::Forward(port) => client.forward(namespace, workload, id, port).await,
        };
        let (sending, receiving) = begun.map_err(|error| refused(&node, &error))?;
        tokio::spawn(relay(inputs, sending));
        Ok(relayed(node, receiving))
    }

    async fn usage(
        &self,
        node: &str,
        instances: &[InstanceEntry],
    ) -> Result<NodeUsage, SessionError> {
        if node == self.node {
            return self.here.usage(node, instances).await;
        }
        let client = self.agents.client(node).await;
        let client = client.map_err(SessionError::Away)?;
        let usage = client.node_usage(node).await;
        usage.map_err(|error| refused(node, &error))
    }

    async fn measurements(&self, node: &str) -> Result<NodeMeasurements, SessionError> {
        if node == self.node {
            return self.here.measurements(node).await;
        }
        let client = self.agents.client(node).await;
        let client = client.map_err(SessionError::Away)?;
        let measured = client.node_metrics(node).await;
        measured.map_err(|error| refused(node, &error))
    }
}

/// The error where another machine's agent refused a session.
fn refused(node: &str, error: &ClientError) -> SessionError {
    match error.status() {
        Some(409) => SessionError::Conflict(error.to_string()),
        Some(429) => SessionError::TooMany {
            message: error.to_string(),
            hint: error.hint(),
        },
        Some(_) => SessionError::Unavailable(format!("the machine `{node}` says: {error}")),
        None => SessionError::Away(away(node, error)),
    }
}

/// Relays input until the caller disconnects or the session is over. The end of the request body
/// tells the other machine.
async fn relay(mut inputs: InputFrames, sending: SessionInput) {
    loop {
        let input = tokio::select! {
            input = inputs.next() => input,
            () = sending.closed() => return,
        };
        match input {
            Some(input) if sending.send(&input).await => {}
            _ => return,
        }
    }
}

fn relayed(node: String, receiving: SessionOutput) -> OutputFrames {
    Box::pin(stream::unfold(Some(receiving), move |receiving| {
        let node = node.clone();
        async move {
            let mut receiving = receiving?;
            match receiving.next().await {
                Ok(last @ (OutputFrame::Exit(_) | OutputFrame::Failed(_))) => Some((last, None)),
                Ok(output) => Some((output, Some(receiving))),
                Err(error) => {
                    let error = ApiError::MachineAway(away(&node, &error));
                    Some((OutputFrame::Failed(Box::new(error.body())), None))
                }
            }
        }
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kat_client::ApiRefusal;
    use kat_types::api::ErrorBody;

    #[test]
    fn a_refused_session_keeps_the_hint_of_its_machine() {
        let body = ErrorBody {
            error: "TooManyRequests".to_owned(),
            message: "too many".to_owned(),
            hint: Some("end some of them".to_owned()),
            ..ErrorBody::default()
        };
        let refusal = ApiRefusal { status: 429, body };
        let error = refused("n2", &ClientError::Refused(Box::new(refusal)));
        let told = ApiError::from(error).body();
        assert_eq!(told.hint.as_deref(), Some("end some of them"));
    }
}
