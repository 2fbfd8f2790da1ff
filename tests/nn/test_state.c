/* SPDX-License-Identifier: Apache-2.0 */
/* State files: what is written can be read by others, what is read is not
 * trusted, and a failure changes neither the module nor the file before. */
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "nn/state_internal.h"
#include "nn/checksum.h"
#include "nn/layers.h"
#include "nn/state.h"
#include "tensor/memory.h"
#include "tests/support/scoped.h"
#include "tensor/creation.h"
#include "tensor/shapes.h"
#include "tensor/layout.h"
#include "nn/module_values.h"
#include "nn/module_tree.h"
#include "tensor/copies.h"
#include "nn/module_internal.h"

static char folder[64], path[96];

static int teardown(void **state)
{
    trek_error_clear();
    unlink(path);
    return 0;
}

static size_t read_file(unsigned char *bytes, size_t room)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    size_t count = fread(bytes, 1, room, file);
    fclose(file);
    return count;
}

static void write_file(const void *bytes, size_t count)
{
    int file = open(path, O_WRONLY | O_CREAT, 0666); /* a file cut to nothing first is synced by some file systems */
    assert_true(file >= 0);
    assert_int_equal(write(file, bytes, count), count);
    assert_int_equal(ftruncate(file, (off_t)count), 0);
    close(file);
}

static int files_in_folder(void)
{
    int count = 0;
    DIR *directory = opendir(folder);
    assert_non_null(directory);
    for (struct dirent *entry; (entry = readdir(directory));)
        count += entry->d_name[0] != '.';
    closedir(directory);
    return count;
}

/* Sum of all elements of all parameters and buffers, each weighted by its place: changes with any of them. */
static trek_status add_up(const char *name, trek_var *var, void *sum)
{
    int64_t count = trek_var_numel(var);
    double *values = malloc((size_t)count * sizeof *values);
    trek_status status = trek_tensor_to_host(trek_var_data(var), TREK_F64, values, (size_t)count * sizeof *values);
    for (int64_t k = 0; k < count; k++)
        *(double *)sum += values[k] * (double)(k + 1);
    free(values);
    return status;
}

static double fingerprint(trek_module *module)
{
    double sum = 0;
    trek_module_each_param(module, add_up, &sum);
    trek_module_each_buffer(module, add_up, &sum);
    return sum;
}

static trek_module *model(void)
{
    return trek_nn_sequential((trek_module *[]){ trek_nn_linear(3, 5, trek_cpu(0)), trek_nn_batch_norm1d(5, trek_cpu(0)),
                                                 trek_nn_relu(), trek_nn_linear(5, 2, trek_cpu(0)) }, 4);
}

/* --- what is written ------------------------------------------------------------- */

/* Numbers of other implementations. */
static void test_checksum(void **state)
{
    static const struct { size_t bytes; uint64_t sum; } known[] = {
        { 0, UINT64_C(0xef46db3751d8e999) }, { 1, UINT64_C(0x8a4127811b21e730) }, { 31, UINT64_C(0x6ab1c40e29f50073) },
            { 32, UINT64_C(0x5a0756fbe9ecd3d1) },
        { 63, UINT64_C(0x10dd94885c71894a) }, { 300, UINT64_C(0xe99d1b8a38d407dd) },
    };
    unsigned char bytes[300];
    char digits[TREK_CHECKSUM_DIGITS];
    for (int k = 0; k < 300; k++)
        bytes[k] = (unsigned char)(k * 7 + 1);
    for (size_t k = 0; k < sizeof known / sizeof *known; k++) {
        assert_true(trek_checksum_of(bytes, known[k].bytes) == known[k].sum);
        for (size_t part = 1; part < 70; part += 3) { /* however it comes */
            trek_checksum sum;
            trek_checksum_begin(&sum);
            for (size_t at = 0; at < known[k].bytes; at += part)
                trek_checksum_add(&sum, bytes + at, known[k].bytes - at < part ? known[k].bytes - at : part);
            assert_true(trek_checksum_end(&sum) == known[k].sum);
        }
        uint64_t back;
        trek_checksum_write(known[k].sum, digits);
        assert_true(trek_checksum_read(digits, &back) && back == known[k].sum);
    }
    assert_memory_equal(digits, "e99d1b8a38d407dd", sizeof digits);
    assert_false(trek_checksum_read("e99d1b8a38d407dD", &(uint64_t){ 0 }));
}

#define METADATA "{\"__metadata__\":{\"format\":\"pt\",\"trek.checksum\":\""

static void test_layout(void **state)
{
    unsigned char bytes[4096];
    trek_state *s = trek_state_new();
    trek_tensor *flag = trek_tensor_from_data((unsigned char[]){ 1, 0, 1 }, trek_dims(3), TREK_BOOL, trek_cpu(0));
    trek_tensor *wide = trek_tensor_from_data((int64_t[]){ -2 }, trek_dims_none(), TREK_I64, trek_cpu(0));
    assert_int_equal(trek_state_add(s, "fl\"ag\n", flag), TREK_OK);
    assert_int_equal(trek_state_add(s, "n", wide), TREK_OK);
    assert_int_equal(trek_state_add_alias(s, "m", "n"), TREK_OK);
    assert_int_equal(trek_state_set_metadata(s, "step", "12"), TREK_OK);
    assert_int_equal(trek_state_write(s, path), TREK_OK);
    trek_tensor_release(flag);
    trek_tensor_release(wide);
    trek_state_free(&s);
    size_t count = read_file(bytes, sizeof bytes), header = bytes[0] + 256u * bytes[1];
    assert_int_equal((header + 8) % 64, 0);
    assert_int_equal(count, 8 + header + 8 + 3);
    assert_memory_equal(bytes + 8 + strlen(METADATA), "trek-xxh64 ", 11);
    unsigned char *digits = bytes + 8 + strlen(METADATA) + 11;
    uint64_t noted[3];
    for (int k = 0; k < 3; k++)
        assert_true(trek_checksum_read((const char *)digits + 17 * k, &noted[k]));
    assert_true(noted[1] == trek_checksum_of(bytes + 8 + header, 8));
    assert_true(noted[2] == trek_checksum_of(bytes + 8 + header + 8, 3));
    memset(digits, '0', 16);
    assert_true(noted[0] == trek_checksum_of(bytes, 8 + header));
    memset(digits + 17, '0', 16);
    memset(digits + 34, '0', 16);
    const char *wanted = METADATA "trek-xxh64 0000000000000000 0000000000000000 "
                                  "0000000000000000\",\"step\":\"12\",\"trek.aliases\":\"{\\\"m\\\":\\\"n\\\"}\"},"
                                  "\"n\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[0,8]},"
                                  "\"fl\\\"ag\\u000a\":{\"dtype\":\"BOOL\",\"shape\":[3],\"data_offsets\":[8,11]}}";
    assert_memory_equal(bytes + 8, wanted, strlen(wanted));
    assert_memory_equal(bytes + 8 + header, "\xfe\xff\xff\xff\xff\xff\xff\xff\1\0\1", 11);
    s = trek_state_read(path);
    assert_non_null(s);
    assert_int_equal(trek_state_count(s), 2);
    assert_string_equal(trek_state_name(s, 1), "fl\"ag\n");
    assert_string_equal(trek_state_metadata(s, "step"), "12");
    assert_null(trek_state_metadata(s, "trek.aliases"));
    assert_ptr_equal(trek_state_find(s, "m"), trek_state_tensor(s, 0));
    assert_int_equal((int)trek_tensor_item(trek_state_find(s, "m")), -2);
    FAILS(trek_state_add(s, "more", trek_state_find(s, "k")), TREK_ERR_ARGUMENT,
          "the last state_find, for \"k\", found nothing");
    assert_int_equal(trek_error_status(), TREK_OK);
    trek_state_free(&s);
}

static void test_dtypes(void **state)
{
    trek_state *s = trek_state_new();
    char name[16];
    for (int d = 0; d < TREK_DTYPE_COUNT; d++) {
        trek_tensor *ramp = trek_tensor_arange(0, 2, 1, TREK_I64, trek_cpu(0)), *cast = trek_tensor_cast(ramp, (trek_dtype)d);
        snprintf(name, sizeof name, "d%d", d);
        assert_int_equal(trek_state_add(s, name, cast), TREK_OK);
        trek_tensor_release(ramp);
        trek_tensor_release(cast);
    }
    trek_tensor *none = trek_tensor_zeros(trek_dims(3, 0, 2), TREK_F32, trek_cpu(0));
    trek_state_add(s, "none", none);
    trek_tensor_release(none);
    assert_int_equal(trek_state_write(s, path), TREK_OK);
    trek_state_free(&s);
    s = trek_state_read(path);
    assert_int_equal(trek_state_count(s), TREK_DTYPE_COUNT + 1);
    for (int d = 0; d < TREK_DTYPE_COUNT; d++) {
        double values[2];
        snprintf(name, sizeof name, "d%d", d);
        trek_tensor *tensor = trek_state_find(s, name);
        assert_int_equal(trek_tensor_dtype(tensor), d);
        trek_tensor_to_host(tensor, TREK_F64, values, sizeof values);
        assert_true(values[0] == 0 && values[1] == 1);
    }
    assert_true(trek_shape_equal(trek_tensor_shape(trek_state_find(s, "none")), trek_dims(3, 0, 2)));
    trek_state_free(&s);
}

/* --- modules there and back --------------------------------------------------------- */

static void test_module(void **state)
{
    trek_seed(1);
    trek_module *a = model(), *b = model();
    trek_state_report report;
    trek_tensor *place = trek_var_data(trek_module_find(b, "3.weight"));
    double first = fingerprint(a);
    assert_true(first != fingerprint(b));
    assert_int_equal(trek_state_save(a, path), TREK_OK);
    assert_int_equal(files_in_folder(), 1);
    assert_int_equal(trek_state_load(b, path, &report), TREK_OK);
    assert_int_equal(report.loaded, 4 + 2 + 3);
    assert_string_equal(report.text, "");
    assert_true(fingerprint(b) == first);
    assert_ptr_equal(trek_var_data(trek_module_find(b, "3.weight")), place);
    trek_state *s = trek_state_of(a); /* a copy */
    assert_int_equal(trek_module_reset(a), TREK_OK);
    assert_true(fingerprint(a) != first);
    assert_int_equal(trek_state_apply(s, a), TREK_OK);
    assert_true(fingerprint(a) == first);
    trek_state_free(&s);
    trek_module_free(&a);
    trek_module_free(&b);
}

static const trek_module_class bare_class = { .name = "bare", .size = sizeof(trek_module) };

static void test_tied(void **state)
{
    trek_module *m = trek_module_new(&bare_class), *layer = trek_nn_linear(2, 2, trek_cpu(0));
    trek_module_add(m, "a", TREK_NO_FIELD, layer);
    trek_module_add(m, "b", TREK_NO_FIELD, layer);
    trek_module_share_param(m, "tied", TREK_NO_FIELD, trek_module_find(layer, "weight"));
    trek_state *s = trek_state_of(m);
    assert_int_equal(trek_state_count(s), 2);
    assert_string_equal(trek_state_name(s, 0), "a.weight"); /* the owner's name, as other programs know it */
    assert_ptr_equal(trek_state_find(s, "b.weight"), trek_state_tensor(s, 0));
    assert_ptr_equal(trek_state_find(s, "tied"), trek_state_tensor(s, 0));
    trek_state_free(&s);
    double first = fingerprint(m);
    assert_int_equal(trek_state_save(m, path), TREK_OK);
    trek_module_reset(m);
    assert_int_equal(trek_state_load(m, path, NULL), TREK_OK);
    assert_true(fingerprint(m) == first);

    /* The file's aliases serve a module that does not tie; another writer may have kept another of the names. */
    trek_module *plain = trek_module_new(&bare_class);
    trek_module_add(plain, "a", TREK_NO_FIELD, trek_nn_linear(2, 2, trek_cpu(0)));
    trek_module_add(plain, "b", TREK_NO_FIELD, trek_nn_linear(2, 2, trek_cpu(0)));
    assert_int_equal(trek_state_load(plain, path, NULL), TREK_OK);
    double a = trek_var_numel(trek_module_find(plain, "a.bias"))
                   ? ((float *)trek_tensor_data(trek_var_data(trek_module_find(plain, "a.bias"))))[1]
                   : 0;
    assert_true(a == ((float *)trek_tensor_data(trek_var_data(trek_module_find(plain, "b.bias"))))[1]);
    s = trek_state_new();
    trek_tensor *weight = trek_tensor_full(trek_dims(2, 2), 7, TREK_F32, trek_cpu(0)),
        *bias = trek_tensor_zeros(trek_dims(2), TREK_F32, trek_cpu(0));
    trek_state_add(s, "b.weight", weight);
    trek_state_add(s, "a.bias", bias);
    assert_int_equal(trek_state_apply(s, m), TREK_OK);
    assert_true(((float *)trek_tensor_data(trek_var_data(trek_module_find(m, "tied"))))[3] == 7);
    trek_tensor_release(weight);
    trek_tensor_release(bias);
    trek_state_free(&s);
    trek_module_free(&m);
    trek_module_free(&plain);
}

/* A model whose head is its embedding's table, below a module of its own name if that is wanted. */
static trek_module *tied_model(bool wrapped)
{
    trek_module *m = trek_module_new(&bare_class), *table = trek_nn_linear(2, 3, trek_cpu(0)), *around;
    trek_module_add(m, "wte", TREK_NO_FIELD, table);
    trek_module_share_param(m, "head", TREK_NO_FIELD, trek_module_find(table, "weight"));
    if (!wrapped)
        return m;
    around = trek_module_new(&bare_class);
    trek_module_add(around, "model", TREK_NO_FIELD, m);
    return around;
}

/* What the file that a model came from calls tensors of its own is written so again, below whatever module. */
static void test_tied_as_loaded(void **state)
{
    static const struct {
        const char *names[3], *alias; /* the file's tensors of the weight, and another name of the first */
        const char *written;          /* "*" before names that have a tensor of their own */
    } cases[] = {
        { { "wte.weight" }, NULL, "*wte.weight head" },          { { "head" }, NULL, "wte.weight *head" },
        { { "wte.weight", "head" }, NULL, "*wte.weight *head" }, { { "head", "wte.weight" }, NULL, "*wte.weight *head" },
        { { "head" }, "wte.weight", "*wte.weight head" }, /* another writer of ours knew both: the owner's is the name */
    };
    static const trek_state_rule rules[] = { { .from = "**", .to = "model.**" } };
    for (size_t k = 0; k < 3 * sizeof cases / sizeof *cases; k++) {
        const char *const *names = cases[k / 3].names;
        trek_module *m = tied_model(k % 3 > 0), *loaded = k % 3 == 1 ? m->own->children[0].module : m;
        trek_state *s = trek_state_new();
        trek_tensor *weight = trek_tensor_full(trek_dims(3, 2), 7, TREK_F32, trek_cpu(0)),
                    *bias = trek_tensor_zeros(trek_dims(3), TREK_F32, trek_cpu(0));
        for (int i = 0; names[i]; i++)
            trek_state_add(s, names[i], weight);
        trek_state_add(s, "wte.bias", bias);
        if (cases[k / 3].alias)
            trek_state_add_alias(s, cases[k / 3].alias, names[0]);
        trek_state_load_opts opts = { .rules = k % 3 == 2 ? rules : NULL, .n_rules = k % 3 == 2 };
        assert_int_equal(trek_state_apply_with(s, loaded, &opts, NULL), TREK_OK);
        trek_state_free(&s);
        trek_state_save_opts save = { .rules = opts.rules, .n_rules = opts.n_rules };
        assert_int_equal(trek_state_save_with(m, path, &save), TREK_OK);
        s = trek_state_read(path);
        char written[64] = "";
        for (int i = 0; i < 2; i++) {
            char name[32];
            const char *plain = i ? "head" : "wte.weight";
            snprintf(name, sizeof name, "%s%s", k % 3 == 1 ? "model." : "", plain);
            assert_non_null(trek_state_find(s, name));
            bool own = false;
            for (int e = 0; e < trek_state_count(s); e++)
                own |= strcmp(trek_state_name(s, e), name) == 0;
            snprintf(written + strlen(written), sizeof written - strlen(written), "%s%s%s", i ? " " : "", own ? "*" : "", plain);
        }
        assert_string_equal(written, cases[k / 3].written);
        trek_state_free(&s);
        assert_int_equal(trek_state_load_with(m, path, &opts, NULL), TREK_OK);
        trek_tensor_release(weight);
        trek_tensor_release(bias);
        trek_module_free(&m);
    }
}

static void test_mismatch(void **state)
{
    trek_module *a = model(),
                *b = trek_nn_sequential(
                    (trek_module *[]){ trek_nn_linear(3, 4, trek_cpu(0)), trek_nn_relu(),
                                          trek_nn_linear_with(&(trek_linear_opts){ .in = 5, .out = 2, .dtype = TREK_F64,
                                                                                   .device = trek_cpu(0) }) }, 3);
    trek_state_report report;
    double before = fingerprint(b);
    trek_state_save(a, path);
    assert_int_equal(trek_state_load(b, path, &report), TREK_ERR_ARGUMENT);
    assert_int_equal(report.missing, 2);
    assert_int_equal(report.unexpected, 7);
    assert_int_equal(report.differing, 2);
    assert_non_null(strstr(trek_error(), "2 missing: 2.weight, 2.bias"));
    assert_non_null(strstr(trek_error(), "3.weight"));
    expect_error(TREK_ERR_ARGUMENT, "0.weight (f32 [5, 3] in the state, f32 [4, 3] in the module)");
    assert_true(fingerprint(b) == before);

    /* Casting must be asked for. */
    trek_module *wide = trek_nn_sequential((trek_module *[]){ trek_nn_linear_with(&(trek_linear_opts){ .in = 3, .out = 5,
                                                                                                       .dtype = TREK_F64,
                                                                                                       .device = trek_cpu(0) }) },
                                                                                                       1);
    trek_module_add(wide, "more", TREK_NO_FIELD, trek_nn_linear(1, 1, trek_cpu(0)));
    trek_state_load_opts opts = { .allow_unexpected = true, .allow_missing = true };
    before = fingerprint(wide);
    FAILS(trek_state_load_with(wide, path, &opts, &report), TREK_ERR_ARGUMENT,
          "2 different: 0.weight (f32 [5, 3] in the state, f64 [5, 3] in the module)");
    opts.cast = true;
    opts.allow_missing = false;
    FAILS(trek_state_load_with(wide, path, &opts, &report), TREK_ERR_ARGUMENT, "2 missing: more.weight, more.bias");
    assert_true(fingerprint(wide) == before);
    opts.allow_missing = true;
    assert_int_equal(trek_state_load_with(wide, path, &opts, &report), TREK_OK);
    assert_int_equal(report.loaded, 2);
    double value = ((float *)trek_tensor_data(trek_var_data(trek_module_find(a, "0.weight"))))[4];
    assert_true(((double *)trek_tensor_data(trek_var_data(trek_module_find(wide, "0.weight"))))[4] == value);
    trek_module_free(&a);
    trek_module_free(&b);
    trek_module_free(&wide);
}

/* The same of a state in memory, with its options and its report. */
static void test_apply_with(void **state)
{
    trek_module *layer = trek_nn_linear(2, 2, trek_cpu(0));
    float *weight = trek_tensor_data(trek_var_data(trek_module_find(layer, "weight"))),
          *bias = trek_tensor_data(trek_var_data(trek_module_find(layer, "bias")));
    float before = bias[0];
    trek_state *s = trek_state_new();
    trek_tensor *wide = trek_tensor_full(trek_dims(2, 2), 0.5, TREK_F64, trek_cpu(0));
    trek_state_add(s, "weight", wide);
    trek_state_add(s, "extra", wide);
    trek_state_load_opts opts = { .allow_missing = true, .allow_unexpected = true };
    trek_state_report report;
    FAILS(trek_state_apply_with(s, layer, NULL, &report), TREK_ERR_ARGUMENT, "1 missing: bias");
    assert_true(report.missing == 1 && report.unexpected == 1 && report.differing == 1);
    FAILS(trek_state_apply_with(s, layer, &opts, &report), TREK_ERR_ARGUMENT,
          "weight (f64 [2, 2] in the state, f32 [2, 2] in the module)");
    assert_true(weight[3] != 0.5f); /* nothing has changed */
    opts.cast = true;
    assert_int_equal(trek_state_apply_with(s, layer, &opts, &report), TREK_OK);
    assert_true(report.loaded == 1 && report.missing == 1 && report.unexpected == 1 && report.differing == 0);
    assert_true(weight[0] == 0.5f && weight[3] == 0.5f && bias[0] == before);
    opts.allow_unexpected = false;
    FAILS(trek_state_apply_with(s, layer, &opts, NULL), TREK_ERR_ARGUMENT, "1 unexpected: extra");
    FAILS(trek_state_apply_with(NULL, layer, &opts, NULL), TREK_ERR_ARGUMENT, "");
    FAILS(trek_state_apply_with(s, NULL, &opts, NULL), TREK_ERR_ARGUMENT, "");
    trek_tensor_release(wide);
    trek_state_free(&s);
    trek_module_free(&layer);
}

/* --- files that are not well-formed ----------------------------------------------------- */

static void write_safetensors(const char *header, size_t data_bytes)
{
    unsigned char bytes[4096] = { 0 };
    size_t length = strlen(header);
    for (int k = 0; k < 8; k++)
        bytes[k] = (unsigned char)((uint64_t)length >> 8 * k);
    memcpy(bytes + 8, header, length);
    write_file(bytes, 8 + length + data_bytes);
}

typedef struct bad_file {
    const char *header;
    size_t data_bytes;
    const char *message;
} bad_file;

static const bad_file bad_files[] = {
    { "", 0, "'{' was expected" },
    { " {}", 0, "'{' was expected as" },
    { "{} x", 0, "after the header's end" },
    { "{", 0, "'\"' was expected" },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}", 4, "'}' was expected" },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},}", 4, "'\"' was expected" },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":["
      "4,8]}}",
      8, "occurs twice" },
    { "{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "occurs twice" },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "needs dtype, shape and data_offsets" },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"x\":1}}", 4, "unknown field" },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}", 4, "do not fit" },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]}}", 4, "do not fit" },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 4, "beyond the end" },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", 8, "leaves a gap" },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 5, "1 bytes at the end" },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":["
      "4,12]}}",
      12, "overlaps" },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}", 4, "not negative" },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1.0],\"data_offsets\":[0,4]}}", 4, "plain integer" },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1e0],\"data_offsets\":[0,4]}}", 4, "plain integer" },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[01],\"data_offsets\":[0,4]}}", 4, "plain integer" },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[9223372036854775808],\"data_offsets\":[0,4]}}", 4, "too large" },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904,4],\"data_offsets\":[0,0]}}", 0, "do not fit" },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,4]}}", 4, "more dimensions" },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,4]}}", 4, "']' was expected" },
    { "{\"a\":{\"dtype\":\"BOOL\",\"shape\":[1],\"data_offsets\":[0,1]}}\x02", 0, "after the header's end" },
    { "{\"\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "without a name" },
    { "{\"\xff\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "not UTF-8" },
    { "{\"\xed\xa0\x80\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "not UTF-8" },
    { "{\"\xc0\x80\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "not UTF-8" },
    { "{\"a\\x\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "unknown escape" },
    { "{\"\\ud800\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "surrogate" },
    { "{\"\\ud800\\u0041\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "surrogate" },
    { "{\"\\u0000\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "not a character" },
    { "{\"\\u00g0\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "hexadecimal" },
    { "{\"a\n\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "without an end" },
    { "{\"a", 0, "without an end" },
    { "{\"a\\", 0, "unknown escape" },
    { "{\"__metadata__\":{\"a\":1}}", 0, "'\"' was expected" },
    { "{\"__metadata__\":{\"a\":\"1\",\"a\":\"2\"}}", 0, "occurs twice" },
    { "{\"__metadata__\":{},\"__metadata__\":{}}", 0, "occurs twice" },
    { "{\"__metadata__\":{\"trek.aliases\":\"{\\\"a\\\":\\\"b\\\"}\"}}", 0, "an alias of a tensor that does not exist" },
    { "{\"__metadata__\":{\"trek.aliases\":\"{}}\"}}", 0, "after the list of aliases" },
    { "{\"__metadata__\":{\"trek.aliases\":\"\"}}", 0, "'{' was expected" },
    { "{\"a\":[[[[[[[[[[]]]]]]]]]]}", 0, "'{' was expected" },
};

/* As many as an index may name, each looked for: in a time that grows with their number, not with its square (hours). */
static void test_many_skipped(void **state)
{
    enum { N = 300000 };
    char name[32];
    trek_state *s = trek_state_new();
    for (int k = 0; k < N; k++) {
        snprintf(name, sizeof name, "layers.%d.weight", k);
        assert_int_equal(trek_state_add_skipped(s, name, "F8_E4M3"), TREK_OK);
    }
    assert_int_equal(trek_state_add_skipped(s, "layers.7.weight", "other"), TREK_OK);
    for (int k = 0; k < N; k++) {
        snprintf(name, sizeof name, "layers.%d.weight", k);
        assert_int_equal(trek_state_lookup_skipped(s, name), k);
    }
    assert_int_equal(trek_state_lookup_skipped(s, "layers"), -1);
    assert_int_equal(trek_state_skipped_count(s), N + 1);
    trek_state_free(&s);
}

static void test_bad_files(void **state)
{
    for (size_t k = 0; k < sizeof bad_files / sizeof *bad_files; k++) {
        write_safetensors(bad_files[k].header, bad_files[k].data_bytes);
        REFUSED(trek_state_read(path), TREK_ERR_FORMAT, bad_files[k].message);
    }
    write_safetensors("{\"a\":{\"dtype\":\"F8_E4M3\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1);
    trek_state *s = trek_state_read(path);
    assert_int_equal(trek_state_skipped_count(s), 1); /* test_state_files.c */
    trek_state_free(&s);
    write_file("\x01\0\0\0", 4);
    REFUSED(trek_state_read(path), TREK_ERR_FORMAT, "too short");
    write_file("PK\3\4\0\0\10\10archive/data.pkl", 25);
    REFUSED(trek_state_read(path), TREK_ERR_FORMAT, "it is not a safetensors file: it looks like torch.save's zip");
    write_file("\x80\2}q\0X\1\0\0", 10);
    REFUSED(trek_state_read(path), TREK_ERR_FORMAT, "it looks like a pickle");
    write_file("\xff\xff\xff\xff\xff\xff\xff\x7f{}", 10);
    REFUSED(trek_state_read(path), TREK_ERR_FORMAT, "does not fit");
    write_file("\x03\0\0\0\0\0\0\0{}", 10);
    REFUSED(trek_state_read(path), TREK_ERR_FORMAT, "does not fit");
    REFUSED(trek_state_read(folder), TREK_ERR_FORMAT, "model.safetensors: it is not a safetensors file");
        /* which the folder holds */
    REFUSED(trek_state_read("/dev/null"), TREK_ERR_IO, "regular file");
    unlink(path);
    REFUSED(trek_state_read(path), TREK_ERR_IO, "No such file");
    write_safetensors("{}  ", 0);
    s = trek_state_read(path);
    assert_int_equal(trek_state_count(s), 0);
    trek_state_free(&s);
    write_safetensors("{ \"\\u00e9\\ud83d\\ude00\" : { \"shape\" : [ ] , \"data_offsets\" : [ 0 , 1 ] , \"dtype\" : \"U8\" } }",
                      1);
    s = trek_state_read(path);
    assert_string_equal(trek_state_name(s, 0), "\xc3\xa9\xf0\x9f\x98\x80");
    trek_state_free(&s);
}

/* Whatever one byte of a file becomes, it is noticed, and a module stays whole. */
static void test_damaged_files(void **state)
{
    static unsigned char bytes[8192];
    trek_module *m = model();
    trek_state_save(m, path);
    size_t count = read_file(bytes, sizeof bytes), header = 8 + bytes[0] + 256u * bytes[1];
    assert_in_range(count, header, sizeof bytes - 1);
    double before = fingerprint(m);
    static const unsigned char values[] = { 0, '"', '{', ']', '9', 0x80, 0xff };
    for (size_t k = 0; k < count; k++) {
        unsigned char kept = bytes[k];
        for (size_t v = 0; v < sizeof values; v++) {
            bytes[k] = values[v];
            if (values[v] == kept)
                continue;
            write_file(bytes, count);
            if (trek_state_load(m, path, NULL) != TREK_ERR_FORMAT)
                fail_msg("byte %zu as %02x: %s", k, values[v], trek_error());
            trek_error_clear();
        }
        bytes[k] = kept;
    }
    for (size_t k = 0; k < count; k++) { /* cut off */
        write_file(bytes, k);
        FAILS(trek_state_load(m, path, NULL), TREK_ERR_FORMAT, "");
    }
    assert_true(fingerprint(m) == before);
    trek_module_free(&m);
}

/* Each bit of a small file, and the message says what it struck. */
static void test_flipped_bits(void **state)
{
    static unsigned char bytes[4096];
    trek_module *m = trek_nn_linear(3, 2, trek_cpu(0));
    trek_state_save(m, path);
    size_t count = read_file(bytes, sizeof bytes), header = 8 + bytes[0] + 256u * bytes[1];
    double before = fingerprint(m);
    for (size_t bit = 0; bit < 8 * count; bit++) {
        bytes[bit / 8] ^= (unsigned char)(1u << bit % 8);
        write_file(bytes, count);
        if (trek_state_load(m, path, NULL) != TREK_ERR_FORMAT)
            fail_msg("bit %zu: %s", bit, trek_error());
        const char *name = bit / 8 < header + 24 ? "(the data of weight)" : "(the data of bias)";
        if (bit / 8 >= header && !(strstr(trek_error(), "its checksum does not match") && strstr(trek_error(), name)))
            fail_msg("bit %zu: %s", bit, trek_error());
        trek_error_clear();
        bytes[bit / 8] ^= (unsigned char)(1u << bit % 8);
    }
    assert_true(fingerprint(m) == before);
    write_file(bytes, count);
    assert_int_equal(trek_state_load(m, path, NULL), TREK_OK);
    trek_module_free(&m);
}

/* --- failing to write --------------------------------------------------------------------- */

static void test_failed_write(void **state)
{
    unsigned char before[8192], after[8192];
    trek_module *m = model(), *big = trek_nn_linear(100, 1000, trek_cpu(0));
    assert_int_equal(trek_state_save(m, path), TREK_OK);
    size_t count = read_file(before, sizeof before);
    struct rlimit limit, small;
    getrlimit(RLIMIT_FSIZE, &limit);
    small = limit;
    small.rlim_cur = 100000;
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &small);
    assert_int_equal(trek_state_save(big, path), TREK_ERR_IO);
    setrlimit(RLIMIT_FSIZE, &limit);
    expect_error(TREK_ERR_IO, "File too large");
    assert_int_equal(read_file(after, sizeof after), count);
    assert_memory_equal(before, after, count);
    assert_int_equal(files_in_folder(), 1);
    FAILS(trek_state_save(m, "/nowhere/at/all"), TREK_ERR_IO, "No such file");
    assert_int_equal(trek_state_save(m, folder), TREK_ERR_IO); /* a directory is not replaced */
    expect_error(TREK_ERR_IO, "rename");
    assert_int_equal(files_in_folder(), 1);
    trek_module_free(&m);
    trek_module_free(&big);
}

static void test_arguments(void **state)
{
    trek_state *s = trek_state_new();
    trek_tensor *tensor = trek_tensor_ones(trek_dims(1), TREK_F32, trek_cpu(0));
    const char *bad[] = { NULL, "", "__metadata__", "\xff" };
    for (int k = 0; k < 4; k++) {
        FAILS(trek_state_add(s, bad[k], tensor), TREK_ERR_ARGUMENT, "");
    }
    char name[16];
    for (int k = 0; k < 500; k++) { /* the table of names grows */
        snprintf(name, sizeof name, "n%d", k);
        assert_int_equal(trek_state_add(s, name, tensor), TREK_OK);
    }
    FAILS(trek_state_add(s, "n77", tensor), TREK_ERR_ARGUMENT, "\"n77\" is in use");
    FAILS(trek_state_add_alias(s, "x", "y"), TREK_ERR_ARGUMENT, "which does not exist");
    assert_ptr_equal(trek_state_find(s, "n499"), tensor);
    assert_int_equal(trek_state_set_metadata(s, "k", "a"), TREK_OK);
    assert_int_equal(trek_state_set_metadata(s, "k", "b"), TREK_OK);
    assert_string_equal(trek_state_metadata(s, "k"), "b");
    trek_tensor_release(tensor);
    trek_state_free(&s);
    assert_null(s);
    trek_state_free(&s);
    FAILS(trek_state_save(NULL, path), TREK_ERR_ARGUMENT, "");
    assert_int_equal(trek_state_count(NULL), 0);
}

/* --- saves that are killed -------------------------------------------------------------------------- */

static int count_left_by(const char *writer)
{
    int n = 0;
    DIR *list = opendir(folder);
    for (struct dirent *entry; (entry = readdir(list));)
        n += strstr(entry->d_name, ".tmp-") && strstr(entry->d_name, writer);
    closedir(list);
    return n;
}

static int count_left(void) { return count_left_by(""); }

/* Whether a writer's file is there and its lock is taken: one that was stopped before that is rightly taken for abandoned. */
static bool is_held(const char *writer)
{
    bool held = false;
    DIR *list = opendir(folder);
    for (struct dirent *entry; (entry = readdir(list));) {
        int file = strstr(entry->d_name, ".tmp-") &&
            strstr(entry->d_name, writer) ? openat(dirfd(list), entry->d_name, O_RDONLY) : -1;
        held = held || (file >= 0 && flock(file, LOCK_EX | LOCK_NB) != 0);
        if (file >= 0)
            close(file);
    }
    closedir(list);
    return held;
}

/* A process that saves and saves, caught while its file is there. It ends with this one, whatever ends that. */
static pid_t catch_in_save(const char *to, int signal)
{
    char writer[32];
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        execl("/proc/self/exe", "test_state", "save", to, (char *)NULL);
        _exit(1);
    }
    snprintf(writer, sizeof writer, "-%d-", (int)pid);
    for (;;) { /* until it is stopped within a save */
        while (count_left_by(writer) == 0)
            usleep(200);
        kill(pid, SIGSTOP);
        waitpid(pid, NULL, WUNTRACED);
        if (is_held(writer))
            break;
        kill(pid, SIGCONT);
    }
    if (signal == SIGKILL) {
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
    }
    return pid;
}

static int save_for_ever(const char *to)
{
    alarm(60);
    trek_tensor *tensor = trek_tensor_zeros(trek_dims(1 << 20), TREK_F32, trek_cpu(0));
    trek_state *s = trek_state_new();
    trek_state_add(s, "x", tensor);
    while (trek_state_write(s, to) == TREK_OK)
        ;
    return 1;
}

static void test_killed_save(void **state)
{
    const char *is_short = getenv("TREK_TEST_SHORT");
    if (is_short && strcmp(is_short, "2") == 0) {
        print_message("skipped: an emulated program does not start itself\n");
        skip();
    }
    alarm(60);
    for (int k = 0; k < 3; k++) {
        catch_in_save(path, SIGKILL);
        assert_int_equal(count_left(), 1); /* the one before is gone */
    }
    pid_t stopped = catch_in_save(path, SIGSTOP);
    assert_int_equal(count_left(), 1);
    trek_state *s = trek_state_new();
    assert_int_equal(trek_state_write(s, path), TREK_OK);
    assert_int_equal(count_left(), 1); /* its writer lives */
    kill(stopped, SIGKILL);
    waitpid(stopped, NULL, 0);
    char other[400], old[400];
    snprintf(other, sizeof other, "%s.tmp-01234567-1-0", path); /* of another machine: only time tells */
    snprintf(old, sizeof old, "%s.tmp-89abcdef-1-0", path);
    close(open(other, O_WRONLY | O_CREAT, 0666));
    close(open(old, O_WRONLY | O_CREAT, 0666));
    struct timespec ago[2] = { { .tv_sec = time(NULL) - 3 * 86400 }, { .tv_sec = time(NULL) - 3 * 86400 } };
    utimensat(AT_FDCWD, old, ago, 0);
    trek_state_free(&s);
    s = trek_state_read(path);
    assert_non_null(s);
    trek_state_free(&s);
    assert_int_equal(count_left(), 1);
    assert_int_equal(unlink(other), 0);
    char beside[400];
    snprintf(beside, sizeof beside, "%s/step-7.safetensors", folder); /* is not written again, nor read */
    catch_in_save(beside, SIGKILL);
    assert_int_equal(count_left(), 1);
    s = trek_state_read(path);
    assert_non_null(s);
    assert_int_equal(count_left(), 0);
    trek_state_free(&s);
    unlink(beside);
}

int main(int count, char **words)
{
    if (count == 3 && strcmp(words[1], "save") == 0)
        return save_for_ever(words[2]);
    strcpy(folder, "/tmp/trek-state-XXXXXX");
    if (!mkdtemp(folder))
        return 1;
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_checksum), cmocka_unit_test_teardown(test_flipped_bits, teardown),
        cmocka_unit_test_teardown(test_layout, teardown), cmocka_unit_test_teardown(test_dtypes, teardown),
        cmocka_unit_test_teardown(test_module, teardown), cmocka_unit_test_teardown(test_tied, teardown),
        cmocka_unit_test_teardown(test_tied_as_loaded, teardown),
        cmocka_unit_test_teardown(test_mismatch, teardown), cmocka_unit_test_teardown(test_apply_with, teardown),
        cmocka_unit_test_teardown(test_many_skipped, teardown), cmocka_unit_test_teardown(test_bad_files, teardown),
        cmocka_unit_test_teardown(test_damaged_files, teardown),
        cmocka_unit_test_teardown(test_failed_write, teardown), cmocka_unit_test_teardown(test_arguments, teardown),
        cmocka_unit_test_teardown(test_killed_save, teardown),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    rmdir(folder);
    return failed;
}
