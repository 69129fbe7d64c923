//! A stack for the handler of signals.

/// Lets libFuzzer's handler of SIGSEGV run on a stack of its own, so that an input on which something
/// recurses too deeply is kept as other crashes are. Sanitizers do this where they are.
pub fn survive_overflow() {
    let memory = Vec::leak(vec![0_u8; 256 * 1024]);
    let stack = libc::stack_t {
        ss_sp: memory.as_mut_ptr().cast(),
        ss_flags: 0,
        ss_size: memory.len(),
    };
    // SAFETY: the memory is never given back, and the action is the default one; libFuzzer, which comes
    // next, keeps the flag.
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
