/* floor: the least that a tracer can do, to measure the tracer against it.
 *
 * `floor pair PID FILE OFFSET`     an empty program at a function's entry and one at its return
 * `floor session PID FILE OFFSET…` one empty program that sees both, of any number of functions (Linux 6.13)
 * `floor record PID FILE OFFSET`   the same, which reads the clock twice and sends a record of 40
 *                                  bytes through a ring buffer: what every exact duration takes
 * `floor identified PID FILE OFFSET…`
 *                                  the same, of any number of functions, which also asks the kernel for the probe
 *                                  that was hit and, at both ends, for the thread: what telling calls apart takes
 * `floor switches`                 an empty program at every context switch, and one at every wakeup
 *
 * Says "on" on stdout once it is attached, and ends at the end of its input. Programs are written in the
 * kernel's own instructions, so that no compiler is needed, nor the newest headers. */
#define _GNU_SOURCE
#include "workload.h"

#include <fcntl.h>
#include <linux/bpf.h>
#include <linux/perf_event.h>
#include <poll.h>
#include <stdint.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>

/* Newer than some headers. */
#define UPROBE_SESSION 57
#define TRACE_RAW_TP 23
#define RING_BYTES (4 << 20)
#define RECORD_BYTES 40
#define MAX_INSTRUCTIONS 64
#define MAX_OFFSETS 256
/* A start for each CPU, in a cache line of its own; a power of two. */
#define CPUS 64
#define CACHE_LINE_SHIFT 6

#define INSN(op, dst, src, offset, value) \
    (struct bpf_insn) { .code = (op), .dst_reg = (dst), .src_reg = (src), .off = (offset), .imm = (value) }
#define MOV_REG(dst, src) INSN(BPF_ALU64 | BPF_MOV | BPF_X, dst, src, 0, 0)
#define MOV(dst, value) INSN(BPF_ALU64 | BPF_MOV | BPF_K, dst, 0, 0, value)
#define SUB(dst, src) INSN(BPF_ALU64 | BPF_SUB | BPF_X, dst, src, 0, 0)
#define CALL(helper) INSN(BPF_JMP | BPF_CALL, 0, 0, 0, helper)
/* Register 1: where the CPU's start is. */
#define START_OF_CPU(map)                                                 \
    CALL(BPF_FUNC_get_smp_processor_id),                                  \
    INSN(BPF_ALU64 | BPF_AND | BPF_K, BPF_REG_0, 0, 0, CPUS - 1),         \
    INSN(BPF_ALU64 | BPF_LSH | BPF_K, BPF_REG_0, 0, 0, CACHE_LINE_SHIFT), \
    MAP(BPF_REG_1, BPF_PSEUDO_MAP_VALUE, map),                            \
    INSN(BPF_ALU64 | BPF_ADD | BPF_X, BPF_REG_1, BPF_REG_0, 0, 0)
#define LOAD(dst, src, offset) INSN(BPF_LDX | BPF_MEM | BPF_DW, dst, src, offset, 0)
#define STORE(dst, offset, src) INSN(BPF_STX | BPF_MEM | BPF_DW, dst, src, offset, 0)
#define JUMP_UNEQUAL(dst, src, offset) INSN(BPF_JMP | BPF_JNE | BPF_X, dst, src, offset, 0)
#define JUMP_ZERO(dst, offset) INSN(BPF_JMP | BPF_JEQ | BPF_K, dst, 0, offset, 0)
#define MAP(dst, kind, fd) INSN(BPF_LD | BPF_DW | BPF_IMM, dst, kind, 0, fd), INSN(0, 0, 0, 0, 0)
#define EXIT INSN(BPF_JMP | BPF_EXIT, 0, 0, 0, 0)
#define LENGTH(array) (sizeof(array) / sizeof *(array))

static int bpf(int command, const void *attr, size_t bytes, const char *what)
{
    int fd = (int)syscall(SYS_bpf, command, attr, bytes);
    if (fd < 0)
        die("floor: %s: %s", what, strerror(errno));
    return fd;
}

static int load(enum bpf_prog_type type, uint32_t attach_type, uint32_t btf_id,
                const struct bpf_insn *instructions, size_t count)
{
    union bpf_attr attr;
    memset(&attr, 0, sizeof attr);
    attr.prog_type = type;
    attr.expected_attach_type = attach_type;
    attr.attach_btf_id = btf_id;
    attr.insns = (uintptr_t)instructions;
    attr.insn_cnt = (uint32_t)count;
    attr.license = (uintptr_t)"GPL";
    return bpf(BPF_PROG_LOAD, &attr, sizeof attr, "loading a program");
}

static int load_empty(enum bpf_prog_type type, uint32_t attach_type, uint32_t btf_id)
{
    const struct bpf_insn empty[] = { MOV(BPF_REG_0, 0), EXIT };
    return load(type, attach_type, btf_id, empty, LENGTH(empty));
}

static int create_map(enum bpf_map_type type, uint32_t key_bytes, uint32_t value_bytes, uint32_t entries)
{
    union bpf_attr attr;
    memset(&attr, 0, sizeof attr);
    attr.map_type = type;
    attr.key_size = key_bytes;
    attr.value_size = value_bytes;
    attr.max_entries = entries;
    return bpf(BPF_MAP_CREATE, &attr, sizeof attr, "creating a map");
}

static unsigned long read_number(const char *path)
{
    unsigned long number;
    FILE *file = fopen(path, "r");
    if (file == NULL || fscanf(file, "%lu", &number) != 1)
        die("floor: %s: no number", path);
    fclose(file);
    return number;
}

static void attach_perf(int program, int pid, const char *file, uint64_t offset, int is_return)
{
    struct perf_event_attr attr;
    memset(&attr, 0, sizeof attr);
    attr.size = sizeof attr;
    attr.type = (uint32_t)read_number("/sys/bus/event_source/devices/uprobe/type");
    attr.config = (uint64_t)is_return; /* bit 0, as format/retprobe says */
    attr.uprobe_path = (uintptr_t)file;
    attr.probe_offset = offset;
    int event = (int)syscall(SYS_perf_event_open, &attr, pid, -1, -1, PERF_FLAG_FD_CLOEXEC);
    if (event < 0 || ioctl(event, PERF_EVENT_IOC_SET_BPF, program) < 0
        || ioctl(event, PERF_EVENT_IOC_ENABLE, 0) < 0)
        die("floor: attaching to %s: %s", file, strerror(errno));
}

static void attach_session(int program, int pid, const char *file, const uint64_t *offsets,
                           unsigned count)
{
    /* `link_create` with `uprobe_multi` of union bpf_attr. */
    struct {
        uint32_t program, target, attach_type, flags;
        uint64_t path, offsets, reference_counts, cookies;
        uint32_t count, multi_flags, pid, padding;
    } attr = {
        .program = (uint32_t)program,
        .attach_type = UPROBE_SESSION,
        .path = (uintptr_t)file,
        .offsets = (uintptr_t)offsets,
        .count = count,
        .pid = (uint32_t)pid,
    };
    bpf(BPF_LINK_CREATE, &attr, sizeof attr, "attaching a session (Linux 6.13 has them)");
}

/* Where the ring buffer is read up to, and written. */
static volatile uint64_t *consumed, *produced;

/* Appends instructions to a program. */
#define EMIT(...)                                                            \
    do {                                                                     \
        const struct bpf_insn emitted[] = { __VA_ARGS__ };                   \
        memcpy(program + length, emitted, sizeof emitted);                   \
        length += LENGTH(emitted);                                           \
    } while (0)

static int load_record(int identified)
{
    int start = create_map(BPF_MAP_TYPE_ARRAY, 4, CPUS << CACHE_LINE_SHIFT, 1);
    int ring = create_map(BPF_MAP_TYPE_RINGBUF, 0, 0, RING_BYTES);
    long page = sysconf(_SC_PAGESIZE);
    consumed = mmap(NULL, (size_t)page, PROT_READ | PROT_WRITE, MAP_SHARED, ring, 0);
    produced = mmap(NULL, (size_t)page, PROT_READ, MAP_SHARED, ring, page);
    if (consumed == MAP_FAILED || produced == MAP_FAILED)
        die("floor: mapping the ring buffer: %s", strerror(errno));
    struct bpf_insn program[MAX_INSTRUCTIONS];
    size_t length = 0;
    EMIT(MOV_REG(BPF_REG_6, BPF_REG_1), CALL(BPF_FUNC_get_func_ip),
         LOAD(BPF_REG_1, BPF_REG_6, 128)); /* pt_regs.ip: at the function's start, or at its caller */
    size_t branch = length;
    EMIT(JUMP_UNEQUAL(BPF_REG_0, BPF_REG_1, 0));
    EMIT(CALL(BPF_FUNC_ktime_get_ns), MOV_REG(BPF_REG_7, BPF_REG_0), START_OF_CPU(start),
         STORE(BPF_REG_1, 0, BPF_REG_7));
    if (identified)
        EMIT(MOV_REG(BPF_REG_1, BPF_REG_6), CALL(BPF_FUNC_get_attach_cookie),
             CALL(BPF_FUNC_get_current_task_btf));
    EMIT(MOV(BPF_REG_0, 0), EXIT);
    program[branch].off = (int16_t)(length - branch - 1);
    if (identified)
        EMIT(CALL(BPF_FUNC_get_current_task_btf));
    EMIT(MAP(BPF_REG_1, BPF_PSEUDO_MAP_FD, ring), MOV(BPF_REG_2, RECORD_BYTES), MOV(BPF_REG_3, 0),
         CALL(BPF_FUNC_ringbuf_reserve));
    size_t full = length;
    EMIT(JUMP_ZERO(BPF_REG_0, 0));
    EMIT(MOV_REG(BPF_REG_7, BPF_REG_0), START_OF_CPU(start), LOAD(BPF_REG_8, BPF_REG_1, 0),
         CALL(BPF_FUNC_ktime_get_ns), SUB(BPF_REG_0, BPF_REG_8));
    for (int16_t at = 0; at < RECORD_BYTES; at += 8)
        EMIT(STORE(BPF_REG_7, at, BPF_REG_0));
    EMIT(MOV_REG(BPF_REG_1, BPF_REG_7), MOV(BPF_REG_2, BPF_RB_NO_WAKEUP),
         CALL(BPF_FUNC_ringbuf_submit));
    program[full].off = (int16_t)(length - full - 1);
    EMIT(MOV(BPF_REG_0, 0), EXIT);
    return load(BPF_PROG_TYPE_KPROBE, UPROBE_SESSION, 0, program, length);
}

/* The id of a type in the kernel's BTF. */
static uint32_t type_id(const char *wanted)
{
    static const char path[] = "/sys/kernel/btf/vmlinux";
    struct stat status;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &status) != 0)
        die("floor: %s: %s", path, strerror(errno));
    char *bytes = malloc((size_t)status.st_size);
    ssize_t had = 0, got;
    while ((got = read(fd, bytes + had, (size_t)(status.st_size - had))) > 0)
        had += got;
    close(fd);
    /* struct btf_header */
    struct {
        uint16_t magic;
        uint8_t version, flags;
        uint32_t header_bytes, types, types_bytes, strings, strings_bytes;
    } header;
    memcpy(&header, bytes, sizeof header);
    const char *strings = bytes + header.header_bytes + header.strings;
    const uint32_t *type = (const uint32_t *)(bytes + header.header_bytes + header.types);
    const uint32_t *end = (const uint32_t *)((const char *)type + header.types_bytes);
    /* What follows a type of each kind, in words: fixed, and for each of its members. */
    static const uint8_t fixed[20] = { [1] = 1, [3] = 3, [14] = 1, [17] = 1 };
    static const uint8_t each[20] = { [4] = 3, [5] = 3, [6] = 2, [13] = 2, [15] = 3, [19] = 3 };
    for (uint32_t id = 1; type + 3 <= end; id++) {
        uint32_t kind = type[1] >> 24 & 31, members = type[1] & 0xffff;
        if (kind >= LENGTH(fixed))
            break;
        if (kind == 8 /* typedef */ && strcmp(strings + type[0], wanted) == 0)
            return id;
        type += 3 + fixed[kind] + each[kind] * members;
    }
    die("floor: the kernel's BTF has no %s", wanted);
}

static void attach_tracepoint(const char *type)
{
    union bpf_attr attr;
    memset(&attr, 0, sizeof attr);
    attr.raw_tracepoint.prog_fd = (uint32_t)load_empty(BPF_PROG_TYPE_TRACING, TRACE_RAW_TP, type_id(type));
    bpf(BPF_RAW_TRACEPOINT_OPEN, &attr, sizeof attr, "attaching to a tracepoint");
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "switches") == 0) {
        attach_tracepoint("btf_trace_sched_switch");
        attach_tracepoint("btf_trace_sched_waking");
    } else if (argc >= 5 && argc < 4 + MAX_OFFSETS) {
        int pid = (int)parse_count(argv[2], "PID");
        const char *file = argv[3];
        uint64_t offsets[MAX_OFFSETS];
        unsigned count = (unsigned)argc - 4;
        for (unsigned i = 0; i < count; i++)
            offsets[i] = parse_count(argv[4 + i], "OFFSET");
        if (strcmp(argv[1], "pair") == 0) {
            attach_perf(load_empty(BPF_PROG_TYPE_KPROBE, 0, 0), pid, file, offsets[0], 0);
            attach_perf(load_empty(BPF_PROG_TYPE_KPROBE, 0, 0), pid, file, offsets[0], 1);
        } else if (strcmp(argv[1], "session") == 0) {
            attach_session(load_empty(BPF_PROG_TYPE_KPROBE, UPROBE_SESSION, 0), pid, file, offsets, count);
        } else if (strcmp(argv[1], "record") == 0) {
            attach_session(load_record(0), pid, file, offsets, 1);
        } else if (strcmp(argv[1], "identified") == 0) {
            attach_session(load_record(1), pid, file, offsets, count);
        } else {
            die("floor: no %s", argv[1]);
        }
    } else {
        die("Usage: floor pair|session|record|identified PID FILE OFFSET, or floor switches");
    }
    puts("on");
    fflush(stdout);
    /* Every record is read as soon as the ring buffer is half full. */
    struct pollfd input = { .fd = STDIN_FILENO, .events = POLLIN };
    while (poll(&input, 1, consumed == NULL ? -1 : 10) == 0)
        if (*produced - *consumed > RING_BYTES / 2)
            *consumed = *produced;
    return 0;
}
