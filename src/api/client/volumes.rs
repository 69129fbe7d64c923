//! The routes of volumes.

use reqwest::Method;

use super::{Client, ClientError, Route, calls::decode, send::Request};
use crate::api::types::{ApplyResult, List, VolumeItem};

impl Client {
    /// Volumes of a namespace, or of all.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn volumes(&self, namespace: Option<&str>) -> Result<List<VolumeItem>, ClientError> {
        self.get(Route::volumes(namespace)?).await
    }

    /// One volume.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn volume(
        &self,
        namespace: &str,
        workload: &str,
        name: &str,
    ) -> Result<VolumeItem, ClientError> {
        self.get(Route::volume(namespace, workload, name)?).await
    }

    /// Says what the deletion of a volume would come to, and does nothing.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn try_delete_volume(
        &self,
        namespace: &str,
        workload: &str,
        name: &str,
    ) -> Result<ApplyResult, ClientError> {
        let route = Route::volume(namespace, workload, name)?.with("dryRun", "true");
        decode(&self.send(&Request::new(Method::DELETE, route)).await?)
    }

    /// Deletes the data of a volume for good. It is gone some time after this. With `if_match`, only
    /// one of that resourceVersion.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn delete_volume(
        &self,
        namespace: &str,
        workload: &str,
        name: &str,
        if_match: Option<&str>,
    ) -> Result<(), ClientError> {
        let route = Route::volume(namespace, workload, name)?;
        let mut request = Request::new(Method::DELETE, route);
        request.if_match = if_match.map(str::to_owned);
        self.send(&request).await.map(|_| ())
    }
}
