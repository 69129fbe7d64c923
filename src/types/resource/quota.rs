//! Quotas of a namespace, and its use of them.

use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Bytes, MilliCpu, QuantityError};

/// [`Amounts::certificate_orders`] of a namespace without this quota. Let's Encrypt issues 50 certificates
/// a week for a registered domain, and takes 300 orders of an account in three hours.
pub const CERTIFICATE_ORDERS: u64 = 20;

/// Amounts of a namespace: its quotas, or its use. What has no quota is not limited, but for
/// `certificateOrders`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Amounts {
    /// Number of workloads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workloads: Option<u64>,
    /// Number of replicas of all workloads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instances: Option<u64>,
    /// CPU requests of all instances.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<MilliCpu>,
    /// Memory requests of all instances.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<Bytes>,
    /// Number of volumes that keep data, including those of deleted workloads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volumes: Option<u64>,
    /// Number of secrets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secrets: Option<u64>,
    /// Bytes of the values of all secrets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret_bytes: Option<Bytes>,
    /// Bytes of the files of all workloads in their current generation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file_bytes: Option<Bytes>,
    /// Number of events that are kept; the oldest are deleted first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub events: Option<u64>,
    /// Number of distinct hosts of all routes, with those that are redirected to another one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hosts: Option<u64>,
    /// Number of certificates that are ordered by ACME within 24 hours for hosts that have none by
    /// ACME; 20 by default. Renewals do not count.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificate_orders: Option<u64>,
}

/// The fields of [`Amounts`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QuotaResource {
    /// [`Amounts::workloads`].
    Workloads,
    /// [`Amounts::instances`].
    Instances,
    /// [`Amounts::cpu`].
    Cpu,
    /// [`Amounts::memory`].
    Memory,
    /// [`Amounts::volumes`].
    Volumes,
    /// [`Amounts::secrets`].
    Secrets,
    /// [`Amounts::secret_bytes`].
    SecretBytes,
    /// [`Amounts::file_bytes`].
    FileBytes,
    /// [`Amounts::events`].
    Events,
    /// [`Amounts::hosts`].
    Hosts,
    /// [`Amounts::certificate_orders`].
    CertificateOrders,
}

impl QuotaResource {
    /// Every field, in the order in which they are shown.
    pub const ALL: [Self; 11] = [
        Self::Workloads,
        Self::Instances,
        Self::Cpu,
        Self::Memory,
        Self::Volumes,
        Self::Secrets,
        Self::SecretBytes,
        Self::FileBytes,
        Self::Events,
        Self::Hosts,
        Self::CertificateOrders,
    ];

    /// The field's name in JSON and on the command line.
    pub fn word(self) -> &'static str {
        match self {
            Self::Workloads => "workloads",
            Self::Instances => "instances",
            Self::Cpu => "cpu",
            Self::Memory => "memory",
            Self::Volumes => "volumes",
            Self::Secrets => "secrets",
            Self::SecretBytes => "secretBytes",
            Self::FileBytes => "fileBytes",
            Self::Events => "events",
            Self::Hosts => "hosts",
            Self::CertificateOrders => "certificateOrders",
        }
    }

    /// The quota of a namespace that sets none; `None` if the amount is not limited then.
    pub fn default_quota(self) -> Option<u64> {
        (self == Self::CertificateOrders).then_some(CERTIFICATE_ORDERS)
    }

    /// The field with this name.
    pub fn of_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|counted| counted.word() == word)
    }

    /// The amount in the notation of users: `2`, `500m`, `64Mi`.
    pub fn show(self, amount: u64) -> String {
        match self {
            Self::Cpu => MilliCpu(amount).to_string(),
            Self::Memory | Self::SecretBytes | Self::FileBytes => Bytes(amount).to_string(),
            Self::Workloads
            | Self::Instances
            | Self::Volumes
            | Self::Secrets
            | Self::Events
            | Self::Hosts
            | Self::CertificateOrders => amount.to_string(),
        }
    }

    /// Parses the notation of [`Self::show`].
    ///
    /// # Errors
    /// [`QuantityError`] with the expected notation.
    pub fn read(self, text: &str) -> Result<u64, QuantityError> {
        match self {
            Self::Cpu => MilliCpu::from_str(text).map(|amount| amount.0),
            Self::Memory | Self::SecretBytes | Self::FileBytes => {
                Bytes::from_str(text).map(|amount| amount.0)
            }
            Self::Workloads
            | Self::Instances
            | Self::Volumes
            | Self::Secrets
            | Self::Events
            | Self::Hosts
            | Self::CertificateOrders => QuantityError::number(text),
        }
    }
}

impl Amounts {
    /// The amount of one field; `None` if it is missing.
    pub fn get(&self, counted: QuotaResource) -> Option<u64> {
        match counted {
            QuotaResource::Workloads => self.workloads,
            QuotaResource::Instances => self.instances,
            QuotaResource::Cpu => self.cpu.map(|amount| amount.0),
            QuotaResource::Memory => self.memory.map(|amount| amount.0),
            QuotaResource::Volumes => self.volumes,
            QuotaResource::Secrets => self.secrets,
            QuotaResource::SecretBytes => self.secret_bytes.map(|amount| amount.0),
            QuotaResource::FileBytes => self.file_bytes.map(|amount| amount.0),
            QuotaResource::Events => self.events,
            QuotaResource::Hosts => self.hosts,
            QuotaResource::CertificateOrders => self.certificate_orders,
        }
    }

    /// Sets the amount of one field, or removes it.
    pub fn set(&mut self, counted: QuotaResource, amount: Option<u64>) {
        match counted {
            QuotaResource::Workloads => self.workloads = amount,
            QuotaResource::Instances => self.instances = amount,
            QuotaResource::Cpu => self.cpu = amount.map(MilliCpu),
            QuotaResource::Memory => self.memory = amount.map(Bytes),
            QuotaResource::Volumes => self.volumes = amount,
            QuotaResource::Secrets => self.secrets = amount,
            QuotaResource::SecretBytes => self.secret_bytes = amount.map(Bytes),
            QuotaResource::FileBytes => self.file_bytes = amount.map(Bytes),
            QuotaResource::Events => self.events = amount,
            QuotaResource::Hosts => self.hosts = amount,
            QuotaResource::CertificateOrders => self.certificate_orders = amount,
        }
    }

    /// Whether a leader with a reader below [`super::NAMESPACE_QUOTA_READER`] would drop one of these
    /// quotas when it writes the namespace.
    pub fn needs_quota_reader(&self) -> bool {
        self.hosts.is_some() || self.certificate_orders.is_some()
    }

    /// Whether no amount is set.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Adds the other amounts to these. A missing amount counts as 0.
    pub fn add(&mut self, other: &Self) {
        for counted in QuotaResource::ALL {
            if let Some(amount) = other.get(counted) {
                let sum = self.get(counted).unwrap_or(0).saturating_add(amount);
                self.set(counted, Some(sum));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_amount_has_its_own_word_and_place() {
        let mut amounts = Amounts::default();
        for (counted, amount) in QuotaResource::ALL.into_iter().zip(1..) {
            amounts.set(counted, Some(amount));
            assert_eq!(QuotaResource::of_word(counted.word()), Some(counted));
            assert_eq!(counted.read(&counted.show(amount)), Ok(amount));
        }
        let json = serde_json::to_value(amounts).unwrap();
        for (counted, amount) in QuotaResource::ALL.into_iter().zip(1..) {
            assert_eq!(amounts.get(counted), Some(amount), "{}", counted.word());
            assert!(json.get(counted.word()).is_some(), "{json}");
        }
        assert_eq!(json.as_object().unwrap().len(), QuotaResource::ALL.len());
        assert!(QuotaResource::Workloads.read("1.5").is_err());
        assert_eq!(QuotaResource::Memory.read("2Gi"), Ok(2 << 30));
        assert_eq!(QuotaResource::Cpu.read("1.5"), Ok(1500));
    }
}
