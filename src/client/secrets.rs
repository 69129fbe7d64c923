//! Calls about secrets.

use reqwest::Method;

use super::{Client, ClientError, RequestPath, calls::decode, send::ApiRequest};
use kat_types::api::{ApplyResult, SealingRotation, SecretItem, SecretRequest};

impl Client {
    /// One secret, without values.
    pub async fn secret(&self, namespace: &str, name: &str) -> Result<SecretItem, ClientError> {
        self.get(RequestPath::secret(namespace, name)?).await
    }

    /// Writes the content of a secret. The same content changes nothing.
    pub async fn write_secret(
        &self,
        namespace: &str,
        name: &str,
        content: &SecretRequest,
    ) -> Result<ApplyResult, ClientError> {
        let route = RequestPath::secret(namespace, name)?;
        let request = self.json(Method::PUT, route, content)?;
        decode(&self.send(&request).await?)
    }

    /// Deletes a secret.
    pub async fn delete_secret(&self, namespace: &str, name: &str) -> Result<(), ClientError> {
        let route = RequestPath::secret(namespace, name)?;
        let request = ApiRequest::new(Method::DELETE, route);
        self.send(&request).await.map(|_| ())
    }

    /// Rotates the data key that seals secrets, or continues a rotation.
    pub async fn rotate_sealing_key(&self, go_on: bool) -> Result<SealingRotation, ClientError> {
        let route = match go_on {
            true => RequestPath::sealing_key().with("goOn", "true"),
            false => RequestPath::sealing_key(),
        };
        let mut request = ApiRequest::new(Method::POST, route);
        // A rotation that was started is continued.
        request.repeatable = true;
        decode(&self.send(&request).await?)
    }
}
