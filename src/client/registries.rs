//! Calls about registries.

use reqwest::Method;

use super::{Client, ClientError, RequestPath, calls::decode};
use kat_types::api::{List, RegistryRequest, RegistryView};

impl Client {
    /// Settings of registries.
    pub async fn registries(&self) -> Result<List<RegistryView>, ClientError> {
        self.get(RequestPath::registries()).await
    }

    /// Sets the settings of a registry.
    pub async fn set_registry(
        &self,
        host: &str,
        request: &RegistryRequest,
    ) -> Result<RegistryView, ClientError> {
        let request = self.json(Method::PUT, RequestPath::registry(host), request)?;
        decode(&self.send(&request).await?)
    }

    /// Deletes the settings of a registry.
    pub async fn unset_registry(&self, host: &str) -> Result<(), ClientError> {
        self.delete(RequestPath::registry(host)).await
    }
}
