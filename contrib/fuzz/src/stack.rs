//! An alternate stack for signal handlers.

/// Gives libFuzzer's SIGSEGV handler its own stack, so that inputs with too deep recursion are
/// saved like other crashes. Sanitizers do this themselves.
pub fn survive_overflow() {
    let memory = Vec::leak(vec![0_u8; 256 * 1024]);
    let stack = libc::stack_t {
        ss_sp: memory.as_mut_ptr().cast(),
        ss_flags: 0,
        ss_size: memory.len(),
    };
    // SAFETY: the memory is never freed, and the action is the default one; libFuzzer, which
    // installs its handler later, keeps the flag.
    unsafe {
        assert_eq!(libc::sigaltstack(&stack, std::ptr::null_mut()), 0);
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = libc::SIG_DFL;
        action.sa_flags = libc::SA_ONSTACK;
        assert_eq!(
            libc::sigaction(libc::SIGSEGV, &action, std::ptr::null_mut()),
            0
        );
    }
}
