//! Any bytes as a certificate request, in DER and in PEM: no panic, and an accepted name is short.
#![no_main]

use kat_fuzz::{peak_of, pem, survive_overflow};
use kat_pki::{CertificateRequest, MAX_REQUEST};
use libfuzzer_sys::fuzz_target;

fuzz_target!(init: survive_overflow(), |bytes: &[u8]| {
    read(&String::from_utf8_lossy(bytes));
    read(&pem::armoured("CERTIFICATE REQUEST", bytes));
});

fn read(pem: &str) {
    let (outcome, memory) = peak_of(|| CertificateRequest::parse(pem));
    assert!(memory <= 64 * MAX_REQUEST, "{memory} bytes of memory");
    match outcome {
        Ok(request) => assert!(request.common_name().len() < MAX_REQUEST),
        Err(error) => assert!(error.to_string().len() < MAX_REQUEST),
    }
}
