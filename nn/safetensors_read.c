/* SPDX-License-Identifier: Apache-2.0 */
/* Reading one safetensors file. */
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "nn/checksum.h"
#include "nn/replace_file.h"
#include "nn/safetensors.h"
#include "tensor/creation.h"
#include "tensor/dlpack.h"
#include "tensor/dtypes.h"
#include "tensor/memory_internal.h"
#include "tensor/status_internal.h"

static trek_status read_bytes(int file, void *data, uint64_t bytes, uint64_t offset, const char *path)
{
    char *to = data;
    while (bytes > 0) {
        size_t part = bytes < (1u << 30) ? (size_t)bytes : (1u << 30);
        ssize_t got = pread(file, to, part, (off_t)offset);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return trek_fail_system(path, "read");
        if (got == 0)
            return trek_fail(TREK_ERR_IO, "%s: the file became shorter while it was read", path);
        to += got;
        offset += (uint64_t)got;
        bytes -= (uint64_t)got;
    }
    return TREK_OK;
}

/* Reads and sums in small parts, so that each part is still in the cache when it is summed. keeps: all bytes go to `data`;
 * otherwise it has room for one part, and only the sum remains. */
static trek_status read_and_sum(int file, unsigned char *data, bool keeps, uint64_t bytes, uint64_t offset, const char *path,
                                uint64_t *checksum)
{
    trek_checksum sum;
    trek_status status = TREK_OK;
    trek_checksum_begin(&sum);
    for (uint64_t at = 0, part; at < bytes && status == TREK_OK; at += part) {
        part = bytes - at < TREK_SAFETENSORS_PART ? bytes - at : TREK_SAFETENSORS_PART;
        status = read_bytes(file, data + (keeps ? at : 0), part, offset + at, path);
        if (status == TREK_OK)
            trek_checksum_add(&sum, data + (keeps ? at : 0), (size_t)part);
    }
    *checksum = trek_checksum_end(&sum);
    return status;
}

/* --- the header ----------------------------------------------------------------------- */

/* Guesses the kind of a file that is not safetensors, from its first bytes. */
static const char *kind_of(const unsigned char *prefix)
{
    static const struct {
        const char *bytes, *kind;
    } kinds[] = {
        { "PK\3\4", "it looks like torch.save's zip; safetensors.torch.save_file writes what trek reads (docs/python.md)" },
        { "\x80\2",
          "it looks like a pickle, as torch.save wrote; safetensors.torch.save_file writes what trek reads (docs/python.md)" },
        { "\x93NUMPY", "it looks like an array of NumPy's" },
        { "\x89HDF", "it looks like HDF5" },
        { "GGUF", "it looks like GGUF" },
        { "version ", "it looks like a pointer of Git LFS: the file itself is still to be fetched" },
    };
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        if (memcmp(prefix, kinds[k].bytes, strlen(kinds[k].bytes)) == 0)
            return kinds[k].kind;
    return NULL;
}

/* Reads the header's length and text. *text is a new string. */
static trek_status read_header(int file, uint64_t size, const char *path, uint64_t *length, char **text)
{
    unsigned char prefix[8];
    if (size < sizeof prefix)
        return trek_fail(TREK_ERR_FORMAT, "%s: too short for a safetensors file", path);
    trek_status status = read_bytes(file, prefix, sizeof prefix, 0, path);
    if (status != TREK_OK)
        return status;
    *length = 0;
    for (int k = 7; k >= 0; k--)
        *length = *length << 8 | prefix[k];
    bool fits = *length <= TREK_SAFETENSORS_MAX_HEADER && *length <= size - sizeof prefix;
    if (!fits && kind_of(prefix))
        return trek_fail(TREK_ERR_FORMAT, "%s: it is not a safetensors file: %s", path, kind_of(prefix));
    if (!fits)
        return trek_fail(TREK_ERR_FORMAT, "%s: it is not a safetensors file: a header of %llu bytes does not fit", path,
                         (unsigned long long)*length);
    *text = trek_alloc((size_t)*length + 1);
    if (!*text)
        return TREK_ERR_MEMORY;
    return read_bytes(file, *text, *length, sizeof prefix, path);
}

/* Checks an intact header. *seal becomes its digits, or NULL if it carries no checksum. */
static trek_status check_header(char *text, size_t length, const char *path, char **seal)
{
    uint64_t noted;
    *seal = trek_safetensors_seal(text, length);
    if (!*seal)
        return TREK_OK;
    bool read = trek_checksum_read(*seal, &noted);
    if (!read || !trek_checksum_holds(trek_safetensors_header_checksum(text, length, *seal), noted))
        return trek_fail(TREK_ERR_FORMAT,
                         "%s: its checksum does not match: the file is damaged (its header), or another program has "
                         "changed it and kept the text " TREK_SAFETENSORS_CHECKSUM,
                         path);
    return TREK_OK;
}

/* Checks that there is one checksum for each tensor: 17 bytes each, between the header's own and the end of the text. */
static trek_status check_digits(const trek_safetensors_header *header, const char *text, size_t length, const char *seal,
                                const char *path,
                                trek_state *state)
{
    bool noted = trek_state_metadata(state, TREK_SAFETENSORS_CHECKSUM) != NULL;
    size_t need = TREK_CHECKSUM_DIGITS + (size_t)header->n_items * (1 + TREK_CHECKSUM_DIGITS);
    bool good = seal && (size_t)(text + length - seal) > need && seal[need] == '"';
    if (noted != (seal != NULL) || (seal && !good))
        return trek_fail(TREK_ERR_FORMAT,
                         "%s: the text " TREK_SAFETENSORS_CHECKSUM " is damaged, or another program has written it", path);
    state->checked = seal != NULL;
    trek_safetensors_drop_text(state, TREK_SAFETENSORS_CHECKSUM);
    return TREK_OK;
}

static const char *digits_of(const char *seal, int64_t k)
{
    return seal + TREK_CHECKSUM_DIGITS + 1 + k * (1 + TREK_CHECKSUM_DIGITS);
}

/* A file whose header was read. Everything that has a tensor in the file or in its memory holds a reference. */
typedef struct open_file {
    trek_state_source base;
    char *path;
    int file;                 /* -1 if the file is mapped */
    char *memory;             /* a private mapping of the whole file; NULL if not mapped */
    uint64_t size, start;     /* the size of the file; where its data begins */
    char *text;               /* the header */
    const char *seal;         /* in the text; NULL if there are no checksums */
    bool verify;              /* compare tensors with their checksums */
    trek_safetensors_header header;
} open_file;

/* Maps the file once its header is known to be good. */
static trek_status map(open_file *f)
{
    void *memory = f->size <= SIZE_MAX
        ? mmap(NULL, (size_t)f->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, f->file, 0)
        : MAP_FAILED;
    if (memory == MAP_FAILED)
        return trek_fail_system(f->path, "map");
    f->memory = memory;
    close(f->file);
    f->file = -1;
    return TREK_OK;
}

static trek_status open_header(open_file *f, const trek_state_read_opts *opts, trek_state *state)
{
    struct stat info;
    char *seal = NULL;
    uint64_t length = 0;
    f->file = open(f->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* avoids hanging on a pipe */
    if (f->file < 0)
        return trek_fail_system(f->path, "open");
    if (fstat(f->file, &info) != 0)
        return trek_fail_system(f->path, "stat");
    if (!S_ISREG(info.st_mode))
        return trek_fail(TREK_ERR_IO, "%s: it is not a regular file", f->path);
    f->size = (uint64_t)info.st_size;
    trek_status status = read_header(f->file, f->size, f->path, &length, &f->text);
    if (status == TREK_OK)
        status = check_header(f->text, (size_t)length, f->path, &seal);
    if (status == TREK_OK)
        status = trek_safetensors_parse(f->text, (size_t)length, f->size - 8 - length, f->path, &f->header, state);
    if (status == TREK_OK)
        status = check_digits(&f->header, f->text, (size_t)length, seal, f->path, state);
    f->seal = seal;
    f->start = 8 + length;
    f->verify = seal && (!opts->map || opts->verify);
    return status == TREK_OK && opts->map ? map(f) : status;
}

static void destroy(trek_state_source *self)
{
    open_file *f = (open_file *)self;
    if (f->memory)
        munmap(f->memory, (size_t)f->size);
    if (f->file >= 0)
        close(f->file);
    trek_safetensors_header_clear(&f->header);
    trek_free(f->text);
    trek_free(f->path);
    trek_free(f);
}

static trek_tensor *read_item(trek_state_source *self, int item);
static trek_tensor *read_part(trek_state_source *self, int item, int64_t begin, int64_t count);
static trek_status check_sum(trek_state_source *self, int item);

/* Opens a file. Its texts go into `state`. */
static open_file *open_new(const char *path, const trek_state_read_opts *opts, trek_state *state)
{
    open_file *f = trek_calloc(1, sizeof *f);
    if (!f)
        return NULL;
    atomic_init(&f->base.refs, 1);
    f->base.read = read_item;
    f->base.read_part = read_part;
    f->base.check = check_sum;
    f->base.destroy = destroy;
    f->file = -1;
    f->path = trek_strdup(path);
    trek_replace_tidy(path);
    if (f->path && open_header(f, opts, state) == TREK_OK)
        return f;
    trek_state_source_release(&f->base);
    return NULL;
}

/* --- tensors --------------------------------------------------------------------------- */

static void let_go(void *data, void *file)
{
    (void)data;
    trek_state_source_release(file);
}

/* Kernels read elements through aligned pointers, so tensors at unaligned addresses are copied. */
static trek_tensor *mapped_tensor(open_file *f, const trek_safetensors_item *item)
{
    char *data = f->memory + f->start + item->begin;
    if ((uintptr_t)data % trek_dtype_size(item->dtype) != 0)
        return trek_tensor_from_data(data, item->shape, item->dtype, trek_cpu(0));
    trek_tensor *tensor = trek_tensor_wrap(data, item->shape, item->dtype, let_go, &f->base);
    if (tensor)
        trek_state_source_retain(&f->base);
    return tensor;
}

/* *checksum is set only if the file is verified. */
static trek_tensor *copied_tensor(open_file *f, const trek_safetensors_item *item, uint64_t *checksum)
{
    trek_tensor *tensor = trek_tensor_empty(item->shape, item->dtype, trek_cpu(0));
    uint64_t bytes = item->end - item->begin, at = f->start + item->begin;
    if (!tensor)
        return NULL;
    trek_status status = f->verify ? read_and_sum(f->file, trek_tensor_data(tensor), true, bytes, at, f->path, checksum)
        : read_bytes(f->file, trek_tensor_data(tensor), bytes, at, f->path);
    if (status != TREK_OK) {
        trek_tensor_release(tensor);
        return NULL;
    }
    return tensor;
}

static trek_status compare_sum(const open_file *f, const trek_safetensors_item *item, uint64_t found)
{
    uint64_t noted;
    if (trek_checksum_read(digits_of(f->seal, item - f->header.items), &noted) && trek_checksum_holds(found, noted))
        return TREK_OK;
    return trek_fail(TREK_ERR_FORMAT, "%s: its checksum does not match: the file is damaged (the data of %s)", f->path,
                     item->name);
}

static trek_status check_tensor(const open_file *f, const trek_safetensors_item *item, const unsigned char *data,
                                uint64_t found)
{
    uint64_t bytes = item->end - item->begin;
    trek_status status = f->verify ? compare_sum(f, item, found) : TREK_OK;
    if (status != TREK_OK)
        return status;
    for (uint64_t k = 0; item->dtype == TREK_BOOL && k < bytes; k++)
        if (data[k] > 1)
            return trek_fail(TREK_ERR_FORMAT, "%s: %s: a bool that is neither 0 nor 1", f->path, item->name);
    return TREK_OK;
}

static trek_tensor *read_item(trek_state_source *self, int k)
{
    open_file *f = (open_file *)self;
    const trek_safetensors_item *item = &f->header.items[k];
    uint64_t sum = 0;
    trek_tensor *tensor = f->memory ? mapped_tensor(f, item) : copied_tensor(f, item, &sum);
    if (tensor && f->memory && f->verify)
        sum = trek_checksum_of(trek_tensor_data(tensor), (size_t)(item->end - item->begin));
    if (!tensor || check_tensor(f, item, trek_tensor_data(tensor), sum) == TREK_OK)
        return tensor;
    trek_tensor_release(tensor);
    return NULL;
}

static trek_tensor *read_part(trek_state_source *self, int k, int64_t begin, int64_t count)
{
    open_file *f = (open_file *)self;
    const trek_safetensors_item *item = &f->header.items[k];
    uint64_t size = trek_dtype_size(item->dtype), at = f->start + item->begin + (uint64_t)begin * size;
    if (f->memory)
        return trek_tensor_from_data(f->memory + at, trek_shape_make(&count, 1), item->dtype, trek_cpu(0));
    trek_tensor *tensor = trek_tensor_empty(trek_shape_make(&count, 1), item->dtype, trek_cpu(0));
    if (!tensor || read_bytes(f->file, trek_tensor_data(tensor), (uint64_t)count * size, at, f->path) == TREK_OK)
        return tensor;
    trek_tensor_release(tensor);
    return NULL;
}

static trek_status check_sum(trek_state_source *self, int k)
{
    open_file *f = (open_file *)self;
    const trek_safetensors_item *item = &f->header.items[k];
    uint64_t bytes = item->end - item->begin, at = f->start + item->begin, sum = 0;
    if (!f->verify)
        return TREK_OK;
    if (f->memory)
        return compare_sum(f, item, trek_checksum_of(f->memory + at, (size_t)bytes));
    unsigned char *room = trek_alloc(TREK_SAFETENSORS_PART);
    trek_status status = room ? read_and_sum(f->file, room, false, bytes, at, f->path, &sum) : TREK_ERR_MEMORY;
    trek_free(room);
    return status == TREK_OK ? compare_sum(f, item, sum) : status;
}

/* --- a state ----------------------------------------------------------------------------- */

static trek_status add_item(trek_state *state, open_file *f, int k)
{
    const trek_safetensors_item *item = &f->header.items[k];
    trek_state_entry entry = { .source = &f->base, .item = k, .dtype = item->dtype, .shape = item->shape };
    return trek_state_add_like(state, item->name, &entry, &(trek_state_change){ 0 });
}

static trek_status add_items(trek_state *state, open_file *f)
{
    trek_status status = TREK_OK;
    for (int k = 0; k < f->header.n_items && status == TREK_OK; k++) {
        const trek_safetensors_item *item = &f->header.items[k];
        if (*item->other)
            status = trek_state_add_skipped(state, item->name, item->other);
        else if (trek_state_lookup(state, item->name) >= 0)
            status = trek_fail(TREK_ERR_FORMAT, "%s: the name %s occurs twice, or in another file, too", f->path, item->name);
        else
            status = add_item(state, f, k);
    }
    return status;
}

trek_status trek_safetensors_add_file(trek_state *state, const char *path, const trek_state_read_opts *opts)
{
    trek_state *texts = trek_state_new();
    open_file *f = texts ? open_new(path, opts, texts) : NULL;
    trek_status status = f ? add_items(state, f) : trek_error_status();
    if (status == TREK_OK)
        status = trek_state_take_metadata(state, texts);
    if (status == TREK_OK)
        status = trek_safetensors_read_aliases(state, path);
    state->checked = state->checked && texts && texts->checked;
    trek_state_source_release(f ? &f->base : NULL);
    trek_state_free(&texts);
    return status;
}
