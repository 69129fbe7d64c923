//! Calls about the cluster's certificate authorities and about routes.

use reqwest::Method;

use super::{Client, ClientError, RequestPath, calls::decode};
use kat_types::{
    api::{
        ApplyResult, AuthorityMigration, AuthorityMigrationRequest, AuthorityRotationRequest,
        AuthorityStatus, AuthoritySuccessions, ExposedValues, IngressAuthorityView, List,
        RouteItem, RouteRequest, VirtualAddressItem,
    },
    resource::Route,
};

impl Client {
    /// KAT's own authority for ingress, which browsers have to trust.
    pub async fn ingress_authority(&self) -> Result<IngressAuthorityView, ClientError> {
        self.get(RequestPath::ingress_authority()).await
    }

    /// Virtual addresses.
    pub async fn virtual_addresses(&self) -> Result<List<VirtualAddressItem>, ClientError> {
        self.get(RequestPath::virtual_addresses()).await
    }

    /// Routes of a namespace, or of all.
    pub async fn routes(&self, namespace: Option<&str>) -> Result<List<RouteItem>, ClientError> {
        self.get(RequestPath::routes(namespace)?).await
    }

    /// Writes a route to something outside KAT, or reports what would happen.
    pub async fn put_route(
        &self,
        route: &Route,
        dry_run: bool,
    ) -> Result<ApplyResult, ClientError> {
        let mut path = RequestPath::routes(None)?;
        if dry_run {
            path = path.with("dryRun", "true");
        }
        let mut request = self.json(Method::PUT, path, &RouteRequest::from(route))?;
        request.repeatable = true;
        decode(&self.send(&request).await?)
    }

    /// Deletes a route to something outside KAT.
    pub async fn delete_route(&self, host: &str, path: &str) -> Result<(), ClientError> {
        let route = RequestPath::routes(None)?;
        let route = route.with("host", host).with("path", path);
        self.delete(route).await
    }

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
