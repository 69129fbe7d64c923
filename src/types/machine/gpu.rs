//! GPUs of machines, named as in the Container Device Interface (CDI): `vendor/class=name`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::resource::{Bytes, GpuDriver, GpuRequest};

/// The class of the CDI devices that count as GPUs.
pub const GPU_CLASS: &str = "gpu";
/// Maximum GPUs of a machine.
pub const MOST_GPUS: usize = 64;
/// Maximum bytes of a GPU's name.
pub const LONGEST_GPU_NAME: usize = 256;

/// The parts of a CDI name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CdiName<'a> {
    /// Vendor and class, such as `nvidia.com/gpu`.
    pub kind: &'a str,
    /// The vendor, such as `nvidia.com`.
    pub vendor: &'a str,
    /// The class, such as `gpu`.
    pub class: &'a str,
    /// The device, such as `0`.
    pub device: &'a str,
}

impl<'a> CdiName<'a> {
    /// Parses a name; `None` if it is not well-formed. The letters of each part are those that CDI
    /// allows, so that a name needs no quoting in a unit.
    pub fn parse(text: &'a str) -> Option<Self> {
        let (kind, device) = text.split_once('=')?;
        let (vendor, class) = kind.split_once('/')?;
        let ends = |part: &str, first: fn(char) -> bool| {
            part.starts_with(first) && part.ends_with(|last: char| last.is_ascii_alphanumeric())
        };
        let has_only = |part: &str, others: &str| {
            part.chars()
                .all(|letter| letter.is_ascii_alphanumeric() || others.contains(letter))
        };
        let alphabetic = |first: char| first.is_ascii_alphabetic();
        let alphanumeric = |first: char| first.is_ascii_alphanumeric();
        let fits = text.len() <= LONGEST_GPU_NAME
            && ends(vendor, alphabetic)
            && has_only(vendor, "_-.")
            && ends(class, alphabetic)
            && has_only(class, "_-.")
            && ends(device, alphanumeric)
            && has_only(device, "_-.:");
        fits.then_some(Self {
            kind,
            vendor,
            class,
            device,
        })
    }

    /// The name, if it is that of a GPU.
    pub fn of_gpu(text: &'a str) -> Option<Self> {
        Self::parse(text).filter(|name| name.class == GPU_CLASS)
    }

    /// Whether the device is of this vendor.
    pub fn is_by(&self, driver: GpuDriver) -> bool {
        match driver {
            GpuDriver::Any => true,
            GpuDriver::Nvidia => self.vendor == "nvidia.com",
            GpuDriver::Amd => self.vendor == "amd.com",
        }
    }
}

/// A GPU of a machine.
#[derive(
    Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "camelCase", default)]
pub struct GpuDevice {
    /// Its CDI name, such as `nvidia.com/gpu=0`.
    pub name: String,
    /// Its memory; null if unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<Bytes>,
}

impl GpuDevice {
    /// Whether it is a GPU of the requested vendor.
    pub fn is_of_driver(&self, request: &GpuRequest) -> bool {
        CdiName::of_gpu(&self.name).is_some_and(|name| name.is_by(request.driver))
    }

    /// Whether it is a GPU of the requested vendor with the requested memory. One whose memory is
    /// unknown suffices only where no memory is requested.
    pub fn suffices(&self, request: &GpuRequest) -> bool {
        let has_memory = match (request.min_vram_mb, self.memory) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(least), Some(Bytes(memory))) => memory >> 20 >= u64::from(least),
        };
        has_memory && self.is_of_driver(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(name: &str, mebibytes: Option<u64>) -> GpuDevice {
        GpuDevice {
            name: name.to_owned(),
            memory: mebibytes.map(|amount| Bytes(amount << 20)),
        }
    }

    #[test]
    fn a_cdi_name_has_a_vendor_a_class_and_a_device() {
        let name = CdiName::parse("nvidia.com/gpu=GPU-1f:0").unwrap();
        assert_eq!(
            (name.kind, name.vendor, name.class, name.device),
            ("nvidia.com/gpu", "nvidia.com", "gpu", "GPU-1f:0")
        );
        assert!(CdiName::of_gpu("amd.com/gpu=0").is_some());
        assert_eq!(CdiName::of_gpu("example.com/net=eth0"), None);
        let long = format!("a.com/gpu={}", "x".repeat(LONGEST_GPU_NAME));
        for wrong in [
            "",
            "nvidia.com/gpu",
            "gpu=0",
            "/gpu=0",
            "nvidia.com/=0",
            "nvidia.com/gpu=",
            "nvidia.com/gpu=-1",
            "nvidia.com/gpu=0 --privileged",
            "nvidia.com/gpu=0\n",
            "nvidia.com/gpu=a=b",
            "1a.com/gpu=0",
            "a.com/g/pu=0",
            "/dev/null",
            long.as_str(),
        ] {
            assert_eq!(CdiName::parse(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn a_gpu_suffices_for_its_vendor_and_for_memory_that_it_is_known_to_have() {
        let asks = |driver, min_vram_mb| GpuRequest {
            driver,
            min_vram_mb,
        };
        let nvidia = gpu("nvidia.com/gpu=0", Some(8192));
        assert!(nvidia.suffices(&asks(GpuDriver::Any, None)));
        assert!(nvidia.suffices(&asks(GpuDriver::Nvidia, Some(8192))));
        assert!(!nvidia.suffices(&asks(GpuDriver::Nvidia, Some(8193))));
        assert!(!nvidia.suffices(&asks(GpuDriver::Amd, None)));
        let unknown = gpu("amd.com/gpu=0", None);
        assert!(unknown.suffices(&asks(GpuDriver::Amd, None)));
        assert!(!unknown.suffices(&asks(GpuDriver::Amd, Some(1))));
        assert!(!gpu("nvidia.com/nic=0", None).suffices(&asks(GpuDriver::Any, None)));
    }
}
