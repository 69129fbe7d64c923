//! Calls about volumes.

use bytes::Bytes;
use reqwest::Method;

use super::{Client, ClientError, RequestPath, calls::decode, send::ApiRequest, transport};
use kat_types::api::{ApplyResult, List, VolumeForgetRequest, VolumeItem, VolumeMoveRequest};

/// A copy of a volume while it arrives.
#[derive(Debug)]
pub struct CopyPieces {
    response: reqwest::Response,
    endpoint: String,
}

impl CopyPieces {
    /// The next part; `None` at the end.
    ///
    /// # Errors
    /// [`ClientError::Interrupted`].
    pub async fn next(&mut self) -> Result<Option<Bytes>, ClientError> {
        let next = self.response.chunk().await;
        next.map_err(|error| ClientError::Interrupted {
            endpoint: self.endpoint.clone(),
            reason: transport::reason(&error),
        })
    }
}

impl Client {
    /// Volumes of a namespace, or of all.
    pub async fn volumes(&self, namespace: Option<&str>) -> Result<List<VolumeItem>, ClientError> {
        self.get(RequestPath::volumes(namespace)?).await
    }

    /// One volume.
    pub async fn volume(
        &self,
        namespace: &str,
        workload: &str,
        name: &str,
    ) -> Result<VolumeItem, ClientError> {
        self.get(RequestPath::volume(namespace, workload, name)?)
            .await
    }

    /// Reports what the deletion of a volume would do, and deletes nothing.
    pub async fn try_delete_volume(
        &self,
        namespace: &str,
        workload: &str,
        name: &str,
    ) -> Result<ApplyResult, ClientError> {
        let route = RequestPath::volume(namespace, workload, name)?.with("dryRun", "true");
        decode(&self.send(&ApiRequest::new(Method::DELETE, route)).await?)
    }

    /// Deletes the data of a volume. It disappears some time after this call. With `if_match` only
    /// a volume of that resourceVersion is deleted.
    pub async fn delete_volume(
        &self,
        namespace: &str,
        workload: &str,
        name: &str,
        if_match: Option<&str>,
    ) -> Result<(), ClientError> {
        let route = RequestPath::volume(namespace, workload, name)?;
        let mut request = ApiRequest::new(Method::DELETE, route);
        request.if_match = if_match.map(str::to_owned);
        self.send(&request).await.map(|_| ())
    }

    /// Requests a move of a volume to another machine, with the volumes that have to be on the same
    /// one.
    pub async fn move_volume(
        &self,
        namespace: &str,
        workload: &str,
        name: &str,
        to: &str,
    ) -> Result<ApplyResult, ClientError> {
        let route = RequestPath::volume_move(namespace, workload, name)?;
        let request = VolumeMoveRequest { to: to.to_owned() };
        decode(&self.send(&self.json(Method::PUT, route, &request)?).await?)
    }

    /// Cancels a move: the data stays on the machine that had it.
    pub async fn cancel_volume_move(
        &self,
        namespace: &str,
        workload: &str,
        name: &str,
    ) -> Result<ApplyResult, ClientError> {
        let route = RequestPath::volume_move(namespace, workload, name)?;
        decode(&self.send(&ApiRequest::new(Method::DELETE, route)).await?)
    }

    /// Checks whether data of a volume could be given up, and gives up nothing.
    pub async fn try_forget_volume(
        &self,
        namespace: &str,
        workload: &str,
        name: &str,
        node: &str,
    ) -> Result<(), ClientError> {
        let route = RequestPath::volume_forget(namespace, workload, name)?.with("dryRun", "true");
        let request = self.json(Method::PUT, route, &forget_request(node))?;
        self.send(&request).await.map(|_| ())
    }

    /// Gives up data of a volume that the machine `node` was to remove and does not find. With
    /// `if_match` only that of a volume of that resourceVersion.
    pub async fn forget_volume(
        &self,
        namespace: &str,
        workload: &str,
        name: &str,
        node: &str,
        if_match: Option<&str>,
    ) -> Result<ApplyResult, ClientError> {
        let route = RequestPath::volume_forget(namespace, workload, name)?;
        let mut request = self.json(Method::PUT, route, &forget_request(node))?;
        request.if_match = if_match.map(str::to_owned);
        decode(&self.send(&request).await?)
    }

    /// Requests a copy of a volume from the agent of the machine that has it.
    pub async fn copy_of_volume(
        &self,
        namespace: &str,
        workload: &str,
        name: &str,
        id: &str,
    ) -> Result<CopyPieces, ClientError> {
        let route = RequestPath::volume_copy(namespace, workload, name)?.with("id", id);
        let (endpoint, response) = self.open(&ApiRequest::get(route)).await?;
        Ok(CopyPieces { response, endpoint })
    }
}

fn forget_request(node: &str) -> VolumeForgetRequest {
    VolumeForgetRequest {
        node: node.to_owned(),
    }
}
