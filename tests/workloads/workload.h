/* What the workloads share: dying with a reason, clocks, waiting for the test's word, and keys.
 *
 * Keys are made afresh at every start, so that no private key is kept in the repository. */
#ifndef WORKLOAD_H
#define WORKLOAD_H

#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define NS_PER_SECOND UINT64_C(1000000000)

/* Ends the program with a message; a workload that cannot keep count must not print a count. */
__attribute__((noreturn, format(printf, 1, 2))) static inline void die(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    exit(1);
}

/* What a clock shows, in nanoseconds. */
static inline uint64_t clock_ns(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * NS_PER_SECOND + (uint64_t)now.tv_nsec;
}

static inline uint64_t now_ns(void)
{
    return clock_ns(CLOCK_MONOTONIC);
}

/* Reads a count; "10x", "" and negative numbers are errors. */
static inline unsigned long parse_count(const char *text, const char *what)
{
    char *end;
    errno = 0;
    unsigned long value = strtoul(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0' || *text == '-')
        die("%s: '%s' is not a number", what, text);
    return value;
}

/* Says `word` on stderr, then waits for a line on stdin. End of file means that whoever started
 * the program is gone: then it ends too, lest it stay behind. */
static inline void wait_for_line(const char *word)
{
    char byte = 0;
    fprintf(stderr, "%s\n", word);
    while (byte != '\n') {
        ssize_t got = read(STDIN_FILENO, &byte, 1);
        if (got == 0)
            exit(1);
        if (got < 0 && errno != EINTR)
            die("stdin: %s", strerror(errno));
    }
}

/* Takes the options from `first` on: --wait says `ready` and waits for the word to start. Returns whether
 * --wait-end was among them: to wait for another word after the result. */
static inline int wait_options(int argc, char **argv, int first, const char *ready)
{
    int wait_end = 0;
    for (int i = first; i < argc; i++) {
        if (strcmp(argv[i], "--wait") == 0)
            wait_for_line(ready);
        else if (strcmp(argv[i], "--wait-end") == 0)
            wait_end = 1;
        else
            die("unexpected argument '%s'", argv[i]);
    }
    return wait_end;
}

#ifdef WORKLOAD_OPENSSL
#include <openssl/err.h>
#include <openssl/evp.h>

/* Ends the program with OpenSSL's own reason unless `ok`. */
static inline void check_ssl(int ok, const char *what)
{
    if (ok)
        return;
    ERR_print_errors_fp(stderr);
    die("%s failed", what);
}

static inline EVP_PKEY *make_rsa(unsigned bits)
{
    EVP_PKEY *key = EVP_PKEY_Q_keygen(NULL, NULL, "RSA", (size_t)bits);
    check_ssl(key != NULL, "making an RSA key");
    return key;
}

static inline EVP_PKEY *make_ec(const char *curve)
{
    EVP_PKEY *key = EVP_PKEY_Q_keygen(NULL, NULL, "EC", curve);
    check_ssl(key != NULL, "making an EC key");
    return key;
}

static inline EVP_PKEY *make_ed25519(void)
{
    EVP_PKEY *key = EVP_PKEY_Q_keygen(NULL, NULL, "ED25519");
    check_ssl(key != NULL, "making an Ed25519 key");
    return key;
}
#endif

#endif
