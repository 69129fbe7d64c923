//! Calls about credentials for registries.

use reqwest::Method;

use super::{Client, ClientError, RequestPath, calls::decode};
use kat_types::api::{List, RegistryLoginRequest, RegistryLoginResult, RegistryLoginView};

impl Client {
    /// The registries that a namespace has credentials for.
    pub async fn registry_logins(
        &self,
        namespace: &str,
    ) -> Result<List<RegistryLoginView>, ClientError> {
        self.get(RequestPath::registry_logins(namespace)?).await
    }

    /// Stores credentials for a registry. Repeating the same ones changes nothing.
    pub async fn login_registry(
        &self,
        namespace: &str,
        registry: &str,
        login: &RegistryLoginRequest,
    ) -> Result<RegistryLoginResult, ClientError> {
        let route = RequestPath::registry_login(namespace, registry)?;
        let request = self.json(Method::PUT, route, login)?;
        decode(&self.send(&request).await?)
    }

    /// Deletes credentials for a registry.
    pub async fn logout_registry(
        &self,
        namespace: &str,
        registry: &str,
    ) -> Result<(), ClientError> {
        self.delete(RequestPath::registry_login(namespace, registry)?)
            .await
    }
}
