/* big: a program of 300 MB, most of it functions that are never called: 250,000 of 1,200 bytes.
 *
 * `big N`: after the word, a thread sleeps N times below the last of them. */
#define _GNU_SOURCE
#include "workload.h"

#include <time.h>

/* Each with rules of its own for its frame, as compiled code has. */
__asm__(".text\n"
        ".rept 250000\n"
        ".cfi_startproc\n"
        "push %rbx\n"
        ".cfi_adjust_cfa_offset 8\n"
        ".cfi_rel_offset %rbx, 0\n"
        ".skip 1200, 0x90\n"
        "pop %rbx\n"
        ".cfi_adjust_cfa_offset -8\n"
        ".cfi_restore %rbx\n"
        "ret\n"
        ".cfi_endproc\n"
        ".endr\n"
        ".globl call_back\n"
        ".type call_back, @function\n"
        "call_back:\n"
        ".cfi_startproc\n"
        "push %rbx\n"
        ".cfi_adjust_cfa_offset 8\n"
        "call *%rdi\n"
        "pop %rbx\n"
        ".cfi_adjust_cfa_offset -8\n"
        "ret\n"
        ".cfi_endproc\n"
        ".size call_back, . - call_back\n");

void call_back(void (*function)(void));

__attribute__((noinline, visibility("default"))) void nap(void)
{
    static const struct timespec while_ = { .tv_nsec = 10000000 };
    nanosleep(&while_, NULL);
    __asm__ volatile("" ::: "memory");
}

/* For a probe: the tracer wants one. */
__attribute__((noinline, visibility("default"))) void finish(unsigned long naps)
{
    printf("{\"schema\":\"big/1\",\"naps\":%lu}\n", naps);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    if (argc != 2)
        die("Usage: big N");
    unsigned long naps = parse_count(argv[1], "N");
    wait_for_line("big: ready");
    for (unsigned long i = 0; i < naps; i++)
        call_back(nap);
    finish(naps);
    wait_for_line("big: done");
    return 0;
}
