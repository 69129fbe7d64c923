//! Calls about the cluster's certificate authorities.

use reqwest::Method;

use super::{Client, ClientError, RequestPath, calls::decode};
use kat_types::api::{
    AuthorityMigration, AuthorityMigrationRequest, AuthorityRotationRequest, AuthorityStatus,
    AuthoritySuccessions, ExposedValues, List,
};

impl Client {
    /// The authorities, how long they are valid, and how far a replacement is.
    pub async fn authorities(&self) -> Result<List<AuthorityStatus>, ClientError> {
        self.get(RequestPath::authorities()).await
    }

    /// The replacements of `cluster-ca`, with what vouches for them.
    pub async fn authority_successions(&self) -> Result<AuthoritySuccessions, ClientError> {
        self.get(RequestPath::authority_successions()).await
    }

    /// Asks for the replacement of an authority. While it has not begun, another request changes
    /// nothing.
    pub async fn rotate_authority(
        &self,
        name: &str,
        request: &AuthorityRotationRequest,
    ) -> Result<AuthorityStatus, ClientError> {
        let route = RequestPath::authority_rotation(name)?;
        let request = self.json(Method::POST, route, request)?;
        decode(&self.send(&request).await?)
    }

    /// The secrets, credentials and tokens from before the recovery key was replaced.
    pub async fn exposed_values(&self) -> Result<ExposedValues, ClientError> {
        self.get(RequestPath::exposed_values()).await
    }

    /// Ends the wait for machines of version 0.1.0 that never come.
    pub async fn end_migration(
        &self,
        without: &[String],
    ) -> Result<AuthorityMigration, ClientError> {
        let without = without.to_vec();
        let body = AuthorityMigrationRequest { without };
        let request = self.json(Method::POST, RequestPath::authority_migration(), &body)?;
        decode(&self.send(&request).await?)
    }
}
