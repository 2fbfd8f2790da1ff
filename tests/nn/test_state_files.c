/* SPDX-License-Identifier: Apache-2.0 */
/* State files of other programs: several files with an index, files that are mapped or read when asked, names by rules, dtypes
 * that trek does not have. */
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "autograd/backward.h"
#include "autograd/ops.h"
#include "nn/config.h"
#include "nn/init.h"
#include "nn/layers.h"
#include "nn/module_tree.h"
#include "nn/state.h"
#include "nn/state_modules.h"
#include "nn/state_tensors.h"
#include "optim/optimizer.h"
#include "tensor/copies.h"
#include "tensor/creation.h"
#include "tensor/memory.h"
#include "tensor/scope.h"
#include "tensor/shapes.h"
#include "tests/support/scoped.h"

static char folder[64], path[400];

/* Of the folder; another call overwrites it. */
static const char *in_folder(const char *name)
{
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void empty_folder(void)
{
    DIR *list = opendir(folder);
    assert_non_null(list);
    for (struct dirent *entry; (entry = readdir(list));)
        if (entry->d_name[0] != '.')
            unlink(in_folder(entry->d_name));
    closedir(list);
}

static int teardown(void **state)
{
    trek_error_clear();
    empty_folder();
    return 0;
}

static int files_in_folder(void)
{
    int count = 0;
    DIR *list = opendir(folder);
    for (struct dirent *entry; (entry = readdir(list));)
        count += entry->d_name[0] != '.';
    closedir(list);
    return count;
}

static void put(const char *name, const void *bytes, size_t count)
{
    FILE *file = fopen(in_folder(name), "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, count, file), count);
    fclose(file);
}

static void put_text(const char *name, const char *text) { put(name, text, strlen(text)); }

/* A safetensors file of this header, and data 0, 1, 2, ... */
static void put_safetensors(const char *name, const char *header, size_t data)
{
    unsigned char bytes[1024] = { 0 };
    size_t length = strlen(header);
    bytes[0] = (unsigned char)length;
    bytes[1] = (unsigned char)(length >> 8);
    memcpy(bytes + 8, header, length);
    for (size_t k = 0; k < data; k++)
        bytes[8 + length + k] = (unsigned char)k;
    put(name, bytes, 8 + length + data);
}

/* A tensor 0, 1, 2, ... plus `from`. */
static void add_ramp(trek_state *s, const char *name, trek_shape shape, double from)
{
    trek_tensor *tensor = trek_tensor_empty(shape, TREK_F32, trek_cpu(0));
    for (int64_t k = 0; k < trek_tensor_numel(tensor); k++)
        ((float *)trek_tensor_data(tensor))[k] = (float)(from + (double)k);
    assert_int_equal(trek_state_add(s, name, tensor), TREK_OK);
    trek_tensor_release(tensor);
}

static double element(const trek_state *s, const char *name, int64_t k)
{
    float values[4096];
    trek_tensor *tensor = trek_state_find(s, name);
    assert_non_null(tensor);
    assert_int_equal(trek_tensor_to_host(tensor, TREK_F32, values, (size_t)trek_tensor_numel(tensor) * sizeof *values), TREK_OK);
    return values[k];
}

static trek_state *three(void)
{
    trek_state *s = trek_state_new();
    add_ramp(s, "b", trek_dims(4, 2), 0);
    add_ramp(s, "a", trek_dims(3), 10);
    add_ramp(s, "c", trek_dims(5), 20);
    assert_int_equal(trek_state_add_alias(s, "tied", "a"), TREK_OK);
    assert_int_equal(trek_state_set_metadata(s, "note", "kept"), TREK_OK);
    return s;
}

static void expect_three(const trek_state *s)
{
    assert_int_equal(trek_state_count(s), 3);
    assert_true(element(s, "b", 7) == 7 && element(s, "a", 2) == 12 && element(s, "c", 4) == 24);
    assert_ptr_equal(trek_state_find(s, "tied"), trek_state_find(s, "a"));
    assert_string_equal(trek_state_metadata(s, "note"), "kept");
}

/* --- several files ----------------------------------------------------------------- */

static void read_text(const char *name, char *text, size_t room)
{
    FILE *file = fopen(in_folder(name), "rb");
    assert_non_null(file);
    text[fread(text, 1, room - 1, file)] = 0;
    fclose(file);
}

static void test_shards(void **state)
{
    char text[1024];
    trek_state *s = three();
    assert_int_equal(trek_state_write_shards(s, folder, 32), TREK_OK); /* b 32 bytes, a 12, c 20: one each of 32 */
    assert_int_equal(files_in_folder(), 3);
    read_text("model.safetensors.index.json", text, sizeof text);
    assert_string_equal(text, "{\n  \"metadata\": {\n    \"total_size\": 64\n  },\n  \"weight_map\": {\n"
                              "    \"a\": \"model-00002-of-00002.safetensors\",\n"
                              "    \"b\": \"model-00001-of-00002.safetensors\",\n"
                              "    \"c\": \"model-00002-of-00002.safetensors\"\n  }\n}\n");
    trek_state *again = trek_state_read(folder);
    expect_three(again);
    trek_state_free(&again);
    again = trek_state_read(in_folder("model.safetensors.index.json"));
    expect_three(again);
    trek_state_free(&again);
    again = trek_state_read_with(folder, &(trek_state_read_opts){ .map = true });
    expect_three(again);
    trek_state_free(&again);

    assert_int_equal(trek_state_write_shards(s, folder, 16), TREK_OK); /* two that are too large */
    assert_int_equal(files_in_folder(), 4);
    again = trek_state_read(folder);
    expect_three(again);
    trek_state_free(&again);
    assert_int_equal(trek_state_write_shards(s, folder, 1000), TREK_OK); /* what was there before is gone */
    assert_int_equal(files_in_folder(), 1);
    assert_int_equal(access(in_folder("model.safetensors"), F_OK), 0);
    again = trek_state_read(folder);
    expect_three(again);
    trek_state_free(&again);
    trek_state_free(&s);
}

#define ONE "{\"x\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}"
#define TWO "{\"y\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}"
#define BOTH "{\"x\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}," \
             "\"y\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}"

static const struct { const char *index, *message; trek_status status; } bad_indexes[] = {
    { "", "'{' was expected", TREK_ERR_FORMAT },
    { "{}", "needs a weight_map", TREK_ERR_FORMAT },
    { "{\"weight_map\":[]}", "'{' was expected", TREK_ERR_FORMAT },
    { "{\"weight_map\":{\"x\":\"one.st\"}", "'}' was expected", TREK_ERR_FORMAT },
    { "{\"weight_map\":{\"x\":\"one.st\"}} x", "after the index's end", TREK_ERR_FORMAT },
    { "{\"weight_map\":{\"x\":1}}", "'\"' was expected", TREK_ERR_FORMAT },
    { "{\"weight_map\":{},\"weight_map\":{}}", "occurs twice", TREK_ERR_FORMAT },
    { "{\"weight_map\":{\"x\":\"../one.st\"}}", "outside of its folder", TREK_ERR_FORMAT },
    { "{\"weight_map\":{\"x\":\"/etc/passwd\"}}", "outside of its folder", TREK_ERR_FORMAT },
    { "{\"weight_map\":{\"x\":\"..\"}}", "outside of its folder", TREK_ERR_FORMAT },
    { "{\"weight_map\":{\"x\":\"\"}}", "outside of its folder", TREK_ERR_FORMAT },
    { "{\"weight_map\":{\"x\":\"a\\\\one.st\"}}", "outside of its folder", TREK_ERR_FORMAT },
    { "{\"weight_map\":{\"x\":\"gone.st\"}}", "No such file", TREK_ERR_IO },
    { "{\"weight_map\":{\"z\":\"one.st\"}}", "tensor z: it does not exist", TREK_ERR_FORMAT },
    { "{\"weight_map\":{\"x\":\"one.st\",\"x\":\"one.st\"}}", "has the name x twice", TREK_ERR_FORMAT },
    { "{\"weight_map\":{\"x\":\"one.st\",\"y\":\"both.st\"}}", "another file has the tensor x", TREK_ERR_FORMAT },
    { "{\"weight_map\":{\"x\":\"index.json\"}}", "it is not a safetensors file", TREK_ERR_FORMAT }, /* the index itself */
    { "{\"metadata\":{\"total_size\":01},\"weight_map\":{\"x\":\"one.st\"}}", "was expected", TREK_ERR_FORMAT },
    { "{\"metadata\":tru,\"weight_map\":{\"x\":\"one.st\"}}", "true, false or null", TREK_ERR_FORMAT },
    { "{\"metadata\":[1.],\"weight_map\":{\"x\":\"one.st\"}}", "a digit was expected", TREK_ERR_FORMAT },
};

static void test_bad_indexes(void **state)
{
    put_safetensors("one.st", ONE, 4);
    put_safetensors("two.st", TWO, 4);
    put_safetensors("both.st", BOTH, 8);
    for (size_t k = 0; k < sizeof bad_indexes / sizeof *bad_indexes; k++) {
        put_text("index.json", bad_indexes[k].index);
        assert_null(trek_state_read(in_folder("index.json")));
        expect_error(bad_indexes[k].status, bad_indexes[k].message);
    }
    char deep[400] = "{\"metadata\":";
    for (int k = 0; k < 100; k++)
        strcat(deep, "[");
    put_text("index.json", deep);
    REFUSED(trek_state_read(in_folder("index.json")), TREK_ERR_FORMAT, "too deep");
    put_text("index.json", "{\"metadata\":{\"total_size\":-1.5e+3,\"a\":[[],{},[1,{\"b\":null}],true]},"
                           "\"weight_map\":{\"y\":\"two.st\",\"x\":\"one.st\"}}");
    trek_state *s = trek_state_read(in_folder("index.json"));
    assert_int_equal(trek_state_count(s), 2);
    trek_state_free(&s);
    put_safetensors("two.st", TWO, 3); /* cut off */
    REFUSED(trek_state_read(in_folder("index.json")), TREK_ERR_FORMAT, "beyond the end");
    REFUSED(trek_state_read(folder), TREK_ERR_IO, "neither model.safetensors nor");
    s = three();
    FAILS(trek_state_write_shards(s, folder, 0), TREK_ERR_ARGUMENT, "max_bytes: 0");
    FAILS(trek_state_write_shards(s, in_folder("gone"), 8), TREK_ERR_IO, "not a folder");
    FAILS(trek_state_write_shards(NULL, folder, 8), TREK_ERR_ARGUMENT, "state");
    trek_state_free(&s);
}

/* --- files that are read when asked ---------------------------------------------------- */

static void test_lazy(void **state)
{
    trek_state *s = three();
    assert_int_equal(trek_state_write(s, in_folder("file")), TREK_OK);
    trek_state_free(&s);
    s = trek_state_read_with(in_folder("file"), &(trek_state_read_opts){ .lazy = true });
    trek_dtype dtype;
    trek_shape shape;
    assert_int_equal(trek_state_describe(s, 0, &dtype, &shape), TREK_OK);
    assert_true(dtype == TREK_F32 && trek_shape_equal(shape, trek_dims(4, 2)));
    FAILS(trek_state_describe(s, 3, NULL, NULL), TREK_ERR_ARGUMENT, "k: 3; must be below 3");
    unlink(in_folder("file")); /* it is open */
    expect_three(s);
    assert_ptr_equal(trek_state_tensor(s, 0), trek_state_tensor(s, 0)); /* read once */
    trek_state_free(&s);

    /* What is damaged is told when it is asked for, and the rest is there. */
    unsigned char bytes[4096];
    s = three();
    assert_int_equal(trek_state_write(s, in_folder("file")), TREK_OK);
    trek_state_free(&s);
    FILE *file = fopen(in_folder("file"), "rb");
    size_t count = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    bytes[count - 1] ^= 1; /* of c */
    put("file", bytes, count);
    for (int map = 0; map < 2; map++) {
        s = trek_state_read_with(in_folder("file"), &(trek_state_read_opts){ .lazy = true, .map = map, .verify = map });
        assert_true(element(s, "b", 7) == 7);
        REFUSED(trek_state_find(s, "c"), TREK_ERR_FORMAT, "the data of c");
        assert_int_equal(trek_state_write(s, in_folder("copy")), TREK_ERR_FORMAT); /* nor is it written elsewhere */
        expect_error(TREK_ERR_FORMAT, "the data of c");
        trek_state_free(&s);
    }
    s = trek_state_read_with(in_folder("file"), &(trek_state_read_opts){ .map = true });
    assert_true(element(s, "c", 0) == 20); /* nobody has asked for checks */
    trek_state_free(&s);
    REFUSED(trek_state_read_with(in_folder("file"), &(trek_state_read_opts){ .map = true, .verify = true }), TREK_ERR_FORMAT,
            "the data of c");
    truncate(in_folder("file"), (off_t)count - 1);
    REFUSED(trek_state_read_with(in_folder("file"), &(trek_state_read_opts){ .lazy = true }), TREK_ERR_FORMAT, "beyond the end");
}

/* Cut short after it was opened. */
static void test_lazy_cut(void **state)
{
    put_safetensors("file", BOTH, 8);
    trek_state *s = trek_state_read_with(in_folder("file"), &(trek_state_read_opts){ .lazy = true });
    assert_int_equal(truncate(in_folder("file"), (off_t)(8 + strlen(BOTH) + 4)), 0);
    assert_non_null(trek_state_find(s, "x"));
    REFUSED(trek_state_find(s, "y"), TREK_ERR_IO, "became shorter");
    trek_state_free(&s);
}

/* --- mapped files ------------------------------------------------------------------------ */

static void test_map(void **state)
{
    unsigned char before[4096], after[4096];
    trek_state *s = three();
    assert_int_equal(trek_state_write(s, in_folder("file")), TREK_OK);
    trek_state_free(&s);
    FILE *file = fopen(in_folder("file"), "rb");
    size_t count = fread(before, 1, sizeof before, file);
    fclose(file);
    s = trek_state_read_with(in_folder("file"), &(trek_state_read_opts){ .map = true });
    trek_tensor *b = trek_tensor_retain(trek_state_find(s, "b"));
    trek_state_free(&s);
    float *values = trek_tensor_data(b); /* which keeps the mapping */
    assert_true(values[7] == 7);
    values[7] = 70;
    file = fopen(in_folder("file"), "rb");
    assert_int_equal(fread(after, 1, sizeof after, file), count);
    fclose(file);
    assert_memory_equal(before, after, count);
    trek_tensor_release(b);

    /* Data that no pointer to its elements may point to, bools, nothing. */
    put_safetensors("odd", "{ \"x\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
                           "\"y\":{\"dtype\":\"I32\",\"shape\":[2],\"data_offsets\":[1,9]},"
                           "\"n\":{\"dtype\":\"F32\",\"shape\":[0,3],\"data_offsets\":[9,9]}}", 9);
    s = trek_state_read_with(in_folder("odd"), &(trek_state_read_opts){ .map = true });
    trek_tensor *y = trek_state_find(s, "y");
    assert_true((uintptr_t)trek_tensor_data(y) % 4 == 0 && *(int32_t *)trek_tensor_data(y) == 0x04030201);
    assert_int_equal(trek_tensor_numel(trek_state_find(s, "n")), 0);
    trek_state_free(&s);
    put_safetensors("bool", "{\"x\":{\"dtype\":\"BOOL\",\"shape\":[3],\"data_offsets\":[0,3]}}", 3);
    REFUSED(trek_state_read_with(in_folder("bool"), &(trek_state_read_opts){ .map = true }), TREK_ERR_FORMAT, "neither 0 nor 1");
}

static trek_module *wide(void)
{
    return trek_nn_sequential((trek_module *[]){ trek_nn_linear(64, 64, trek_cpu(0)), trek_nn_relu(),
                                                 trek_nn_linear(64, 64, trek_cpu(0)) }, 3);
}

static float *weight(trek_module *m, const char *name) { return trek_tensor_data(trek_var_data(trek_module_find(m, name))); }

static void run(trek_module *m, float *out)
{
    trek_scope scope = trek_scope_begin();
    trek_var *x = trek_var_from(trek_tensor_arange(0, 1, 1.0 / 64, TREK_F32, trek_cpu(0)));
    trek_var *y = trek_forward(m, trek_reshape(x, trek_dims(1, 64)));
    assert_non_null(y);
    assert_int_equal(trek_tensor_to_host(trek_var_data(y), TREK_F32, out, 64 * sizeof *out), TREK_OK);
    trek_scope_end(scope);
}

/* A model that is made without values takes its file's memory over, trains, and leaves the file as it was. */
static void test_assign(void **state)
{
    float want[64], got[64];
    trek_seed(5);
    trek_module *a = wide();
    run(a, want);
    assert_int_equal(trek_state_save(a, in_folder("file")), TREK_OK);
    trek_init_skip_begin();
    trek_module *b = wide();
    trek_init_skip_end();
    trek_state_load_opts opts = { .assign = true, .map = true };
    trek_state_report report;
    trek_tensor *header = trek_var_data(trek_module_find(b, "0.weight"));
    assert_int_equal(trek_state_load_with(b, in_folder("file"), &opts, &report), TREK_OK);
    assert_int_equal(report.loaded, 4);
    assert_int_equal(report.assigned, 2); /* the weights; biases are less than a page */
    assert_ptr_equal(trek_var_data(trek_module_find(b, "0.weight")), header);
    run(b, got);
    assert_memory_equal(want, got, sizeof want);
    trek_params *params = trek_module_params(b);
    trek_optimizer *optimizer = trek_optimizer_new(trek_sgd(&(trek_sgd_opts){ .lr = 0.1 }), params);
    for (int k = 0; k < 2; k++) {
        trek_scope scope = trek_scope_begin();
        trek_var *x = trek_var_from(trek_tensor_ones(trek_dims(2, 64), TREK_F32, trek_cpu(0)));
        assert_int_equal(trek_backward(trek_sum(trek_forward(b, x), trek_dims_all(), false)), TREK_OK);
        assert_int_equal(trek_optimizer_step(optimizer), TREK_OK);
        trek_scope_end(scope);
    }
    run(b, got);
    assert_true(memcmp(want, got, sizeof want) != 0);
    opts.allow_missing = true;
    assert_int_equal(trek_state_load_with(b, in_folder("file"), &opts, &report), TREK_OK); /* into the optimizer's arena */
    assert_int_equal(report.assigned, 0);
    run(b, got);
    assert_memory_equal(want, got, sizeof want);
    trek_optimizer_free(&optimizer);
    trek_params_free(&params);
    trek_module_free(&a);
    trek_module_free(&b);
}

/* Where others look at the memory, it stays; tied ones agree; what the tape saved counts as changed. */
static void test_assign_shared(void **state)
{
    trek_seed(6);
    trek_module *a = wide(), *b = wide();
    trek_state *s = trek_state_of(a);
    trek_state_load_opts opts = { .assign = true };
    trek_state_report report;
    trek_scope outer = trek_scope_begin();
    trek_tensor *view = trek_var_data(trek_reshape(trek_module_find(b, "0.weight"), trek_dims(4096)));
    assert_int_equal(trek_state_apply_with(s, b, &opts, &report), TREK_OK);
    assert_int_equal(report.assigned, 1); /* 2.weight */
    assert_ptr_equal(trek_tensor_data(view), weight(b, "0.weight"));
    assert_true(((float *)trek_tensor_data(view))[9] == weight(a, "0.weight")[9]);
    assert_ptr_equal(weight(b, "2.weight"), trek_tensor_data(trek_state_find(s, "2.weight")));
    trek_scope_end(outer);

    trek_scope scope = trek_scope_begin();
    trek_var *x = trek_var_from(trek_tensor_ones(trek_dims(1, 64), TREK_F32, trek_cpu(0)));
    trek_var *y = trek_sum(trek_mul(trek_forward(b, x), trek_forward(b, x)), trek_dims_all(), false);
    assert_int_equal(trek_state_apply_with(s, b, &opts, &report), TREK_OK);
    assert_int_not_equal(trek_backward(y), TREK_OK);
    trek_error_clear();
    trek_scope_end(scope);
    trek_state_free(&s);

    /* One tensor with two names, into a module that has two parameters. */
    s = trek_state_new();
    add_ramp(s, "0.weight", trek_dims(64, 64), 0);
    add_ramp(s, "0.bias", trek_dims(64), 0);
    trek_state_add_alias(s, "2.weight", "0.weight");
    trek_state_add_alias(s, "2.bias", "0.bias");
    trek_module *c = wide();
    assert_int_equal(trek_state_apply_with(s, c, &opts, &report), TREK_OK);
    assert_int_equal(report.assigned, 1);
    assert_true(weight(c, "0.weight") != weight(c, "2.weight") && weight(c, "2.weight")[4095] == 4095);
    trek_state_free(&s);
    assert_true(weight(c, "0.weight")[4095] == 4095);
    trek_module_free(&a);
    trek_module_free(&b);
    trek_module_free(&c);
}

static void test_skip(void **state)
{
    trek_seed(7);
    trek_tensor *want = trek_tensor_rand(trek_dims(1), TREK_F64, trek_cpu(0));
    trek_seed(7);
    trek_init_skip_begin();
    trek_init_skip_begin();
    trek_init_skip_end();
    trek_module *m = trek_nn_sequential((trek_module *[]){ trek_nn_linear(8, 8, trek_cpu(0)),
                                                           trek_nn_layer_norm(8, trek_cpu(0)),
                                                           trek_nn_embedding(5, 8, trek_cpu(0)) }, 3);
    trek_var *p = trek_module_find(m, "0.weight");
    weight(m, "0.weight")[3] = 9;
    assert_int_equal(trek_init_normal(p, 0, 1), TREK_OK);
    assert_int_equal(trek_init_xavier_uniform(p, 1), TREK_OK);
    assert_int_equal(trek_init_trunc_normal(p, 0, 1, -1, 1), TREK_OK);
    assert_int_equal(trek_init_orthogonal(p, 1), TREK_OK);
    assert_int_equal(trek_init_sparse(p, 0.5, 1), TREK_OK);
    assert_int_equal(trek_init_normal(p, 0, -1), TREK_ERR_ARGUMENT); /* still checked */
    trek_error_clear();
    assert_true(weight(m, "0.weight")[3] == 9 && weight(m, "1.weight")[7] == 1);
    trek_init_skip_end();
    trek_init_skip_end();
    trek_tensor *got = trek_tensor_rand(trek_dims(1), TREK_F64, trek_cpu(0));
    assert_true(trek_tensor_item(got) == trek_tensor_item(want)); /* nothing was drawn */
    assert_int_equal(trek_init_constant(p, 2), TREK_OK);
    assert_int_equal(trek_init_uniform(p, 3, 4), TREK_OK);
    assert_true(weight(m, "0.weight")[3] >= 3);
    trek_tensor_release(want);
    trek_tensor_release(got);
    trek_module_free(&m);
}

/* --- rules ------------------------------------------------------------------------------------ */

static void expect_names(const trek_state *s, int n, const char *const *names)
{
    assert_non_null(s);
    assert_int_equal(trek_state_count(s), n);
    for (int k = 0; k < n; k++)
        assert_string_equal(trek_state_name(s, k), names[k]);
}

static void test_patterns(void **state)
{
    static const struct { const char *from, *to, *name, *want; } cases[] = {
        { "a.*.b", "x.*.y", "a.1.b", "x.1.y" }, { "a.*.b", "x.*.y", "a.1.2.b", "a.1.2.b" }, { "a.**.b", "**", "a.1.2.b", "1.2" },
        { "**.b", "**.c", "a.b.b.b", "a.b.b.c" }, { "*a*.w", "*-*.v", "baad.w", "b-ad.v" }, { "model.**", "**", "model.x", "x" },
        { "model.**", "**", "mode.x", "mode.x" }, { "**", "p.**", "x", "p.x" }, { "**.*.q", "**/*!", "a.b.c.q", "a.b/c!" },
        { "*", "n*", "x", "nx" }, { "**a*b.c", "**|*", "xaxb.yab.c", "xaxb.y|" }, { "x", "y", "xx", "xx" },
        { "x", "y", "x", "y" },
        { "**.a.*.b**", "**,*,**", "q.a.r.a.s.b.t", "q.a.r,s,.t" },
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        trek_state *s = trek_state_new();
        add_ramp(s, cases[k].name, trek_dims(1), 0);
        trek_state_rule rule = { .from = cases[k].from, .to = cases[k].to };
        trek_state *renamed = trek_state_rename(s, &rule, 1);
        expect_names(renamed, 1, &cases[k].want);
        trek_state_free(&renamed);
        trek_state_free(&s);
    }
}

static const trek_state_rule rules[] = {
    { .from = "t.*.qkv.weight", .to = "*.q", .transpose = true, .parts = 3, .part = 0, .dim = -1 },
    { .from = "t.*.qkv.weight", .to = "*.k", .transpose = true, .parts = 3, .part = 1, .dim = -1 },
    { .from = "t.*.qkv.weight", .to = "*.v", .transpose = true, .parts = 3, .part = 2, .dim = -1 },
    { .from = "t.*.w", .to = "*.weight", .transpose = true },
    { .from = "**.mask", .to = NULL },
    { .from = "t.**", .to = "**" },
};
enum { RULES = sizeof rules / sizeof *rules };

static void test_rules(void **state)
{
    static const char *const want[] = { "0.q", "0.k", "0.v", "0.weight", "ln", "other" };
    trek_state *s = trek_state_new();
    add_ramp(s, "t.0.qkv.weight", trek_dims(2, 9), 0);
    add_ramp(s, "t.0.w", trek_dims(2, 3), 50);
    add_ramp(s, "t.0.mask", trek_dims(7), 0);
    add_ramp(s, "t.ln", trek_dims(2), 90);
    add_ramp(s, "other", trek_dims(1), 99);
    trek_state_add_alias(s, "t.head", "other");
    trek_state_set_metadata(s, "note", "kept");
    assert_int_equal(trek_state_write(s, in_folder("file")), TREK_OK);
    for (int how = 0; how < 3; how++) {
        trek_state *read = how ? trek_state_read_with(in_folder("file"), &(trek_state_read_opts){ .lazy = true, .map = how == 2 })
            : s;
        trek_state *r = trek_state_rename(how ? read : s, rules, RULES);
        expect_names(r, 6, want);
        trek_shape shape;
        trek_state_describe(r, 1, NULL, &shape);
        assert_true(trek_shape_equal(shape, trek_dims(3, 2)));
        assert_true(element(r, "0.q", 1) == 9 && element(r, "0.k", 2) == 4 && element(r, "0.v", 5) == 17);
            /* [c][r] of r * 9 + c */
        assert_true(element(r, "0.weight", 1) == 53 && element(r, "head", 0) == 99);
        assert_string_equal(trek_state_metadata(r, "note"), "kept");
        trek_state *back = trek_state_restore_names(r, rules, RULES);
        assert_non_null(back);
        assert_int_equal(trek_state_count(back), 4);
        for (int k = 0; k < 18; k++)
            assert_true(element(back, "t.0.qkv.weight", k) == k);
        assert_true(element(back, "t.0.w", 1) == 51 && element(back, "t.ln", 1) == 91 && element(back, "t.other", 0) == 99);
        trek_state_free(&back);
        trek_state_free(&r);
        if (how)
            trek_state_free(&read);
    }
    trek_state_free(&s);
}

static void test_bad_rules(void **state)
{
    static const struct { trek_state_rule rule; const char *message; } bad[] = {
        { { .from = NULL, .to = "x" }, "no pattern" }, { { .from = "", .to = "x" }, "no pattern" },
            { { .from = "*", .to = "x" }, "the same wildcards" },
        { { .from = "*", .to = "**" }, "the same wildcards" },
        { { .from = "a*********************", .to = "b*********************" }, "the same wildcards" },
        { { .from = "b", .to = "x", .parts = 2, .part = 2 }, "part 2 of 2 does not exist" },
        { { .from = "b", .to = "x", .parts = -1 }, "does not exist" },
        { { .from = "b", .to = "x", .parts = 3, .dim = 0 }, "no part 0 of 3" },
        { { .from = "b", .to = "x", .parts = 2, .dim = 2 }, "along dimension 2" },
        { { .from = "a", .to = "x", .transpose = true }, "fewer than two" }, { { .from = "b", .to = "a" }, "is in use already" },
    };
    trek_state *s = three();
    for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) {
        REFUSED(trek_state_rename(s, &bad[k].rule, 1), TREK_ERR_ARGUMENT, bad[k].message);
    }
    REFUSED(trek_state_rename(NULL, NULL, 0), TREK_ERR_ARGUMENT, "state");
    REFUSED(trek_state_rename(s, NULL, 1), TREK_ERR_ARGUMENT, "rules");
    REFUSED(trek_state_restore_names(NULL, NULL, 0), TREK_ERR_ARGUMENT, "state");
    static const trek_state_rule halves[] = { { .from = "whole", .to = "b", .parts = 2, .part = 0 },
                                              { .from = "whole", .to = "c", .parts = 2, .part = 1 } };
    REFUSED(trek_state_restore_names(s, halves, 1), TREK_ERR_ARGUMENT, "1 of its 2 parts");
    REFUSED(trek_state_restore_names(s, halves, 2), TREK_ERR_ARGUMENT, "does not fit the other parts");
    trek_state_free(&s);
    s = trek_state_new();
    add_ramp(s, "b", trek_dims(2), 0);
    REFUSED(trek_state_restore_names(s, halves, 2), TREK_ERR_ARGUMENT, "c does not exist");
    trek_state_free(&s);
}

/* Loading and saving with rules and shards: there and back. */
static void test_module_rules(void **state)
{
    static const trek_state_rule names[] = { { .from = "net.*.kernel", .to = "*.weight", .transpose = true },
                                             { .from = "net.**", .to = "**" } };
    trek_module *a = wide(), *b = wide();
    trek_state_save_opts save = { .max_shard_bytes = 17000, .rules = names, .n_rules = 2 };
    assert_int_equal(trek_state_save_with(a, folder, &save), TREK_OK);
    trek_state *s = trek_state_read_with(folder, &(trek_state_read_opts){ .map = true });
    static const char *const want[] = { "net.0.kernel", "net.0.bias", "net.2.kernel", "net.2.bias" };
    expect_names(s, 4, want);
    assert_true(element(s, "net.2.kernel", 1) == weight(a, "2.weight")[64]);
    trek_state_free(&s);
    trek_state_report report;
    trek_state_load_opts load = { .rules = names, .n_rules = 2, .map = true, .assign = true };
    assert_int_equal(trek_state_load_with(b, folder, &load, &report), TREK_OK);
    assert_int_equal(report.assigned, 0); /* transposed */
    assert_memory_equal(weight(a, "2.weight"), weight(b, "2.weight"), 4096 * sizeof(float));
    load.n_rules = 1;
    FAILS(trek_state_load_with(b, folder, &load, &report), TREK_ERR_ARGUMENT, "2 unexpected: net.0.bias");
    /* Into another dtype, mapped. */
    trek_module *c = trek_nn_linear_with(&(trek_linear_opts){ .in = 64, .out = 64, .dtype = TREK_BF16, .device = trek_cpu(0) });
    static const trek_state_rule first[] = { { .from = "net.0.kernel", .to = "weight", .transpose = true },
                                             { .from = "net.0.**", .to = "**" }, { .from = "**.2.**", .to = NULL } };
    load = (trek_state_load_opts){ .rules = first, .n_rules = 3, .map = true, .assign = true, .cast = true };
    assert_int_equal(trek_state_load_with(c, folder, &load, &report), TREK_OK);
    float values[4096];
    assert_int_equal(trek_tensor_to_host(trek_var_data(trek_module_find(c, "weight")), TREK_F32, values, sizeof values), TREK_OK);
    for (int k = 0; k < 4096; k++)
        assert_true(values[k] - weight(a, "0.weight")[k] < 1e-3f && weight(a, "0.weight")[k] - values[k] < 1e-3f);
    trek_module_free(&a);
    trek_module_free(&b);
    trek_module_free(&c);
}

/* --- dtypes that trek does not have ------------------------------------------------------------- */

static void test_skipped(void **state)
{
    put_safetensors("file", "{\"weight\":{\"dtype\":\"F32\",\"shape\":[1,1],\"data_offsets\":[0,4]},"
                            "\"bias\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]},"
                            "\"scale\":{\"dtype\":\"F8_E4M3\",\"shape\":[2],\"data_offsets\":[8,10]},"
                            "\"odd\":{\"dtype\":\"NEW7\",\"shape\":[5],\"data_offsets\":[10,12]},"
                            "\"half\":{\"dtype\":\"F4\",\"shape\":[2,2],\"data_offsets\":[12,14]}}", 14);
    trek_state *s = trek_state_read(in_folder("file"));
    const char *dtype = NULL;
    assert_int_equal(trek_state_count(s), 2);
    assert_int_equal(trek_state_skipped_count(s), 3);
    assert_string_equal(trek_state_skipped_name(s, 1, &dtype), "odd");
    assert_string_equal(dtype, "NEW7");
    REFUSED(trek_state_skipped_name(s, 3, NULL), TREK_ERR_ARGUMENT, "k: 3; must be below 3");
    trek_module *m = trek_nn_linear(1, 1, trek_cpu(0));
    trek_state_report report;
    assert_int_equal(trek_state_apply_with(s, m, NULL, &report), TREK_OK);
    assert_int_equal(report.skipped, 3);
    assert_non_null(strstr(report.text, "3 skipped, of dtypes that trek does not have: scale (F8_E4M3), odd (NEW7), half (F4)"));
    /* But not what is needed, whatever else may be missing. */
    static const trek_state_rule needs[] = { { .from = "bias", .to = NULL }, { .from = "scale", .to = "bias" } };
    trek_state_load_opts opts = { .allow_missing = true, .allow_unexpected = true, .rules = needs, .n_rules = 2 };
    FAILS(trek_state_apply_with(s, m, &opts, NULL), TREK_ERR_UNSUPPORTED, "bias has dtype F8_E4M3");
    trek_module_free(&m);
    trek_state_free(&s);
    put_safetensors("file", "{\"a\":{\"dtype\":\"U16\",\"shape\":[2],\"data_offsets\":[0,3]}}", 3);
    REFUSED(trek_state_read(in_folder("file")), TREK_ERR_FORMAT, "do not fit its shape");
    put_safetensors("file", "{\"a\":{\"dtype\":\"A_NAME_OF_NO_DTYPE\",\"shape\":[2],\"data_offsets\":[0,3]}}", 3);
    REFUSED(trek_state_read(in_folder("file")), TREK_ERR_FORMAT, "not the name of a dtype");
}

/* --- configurations ---------------------------------------------------------------------------- */

static void test_config(void **state)
{
    put_text("config.json",
             "{ \"n_layer\": 12, \"eps\": 1e-05, \"tie\": true, \"off\":false, \"act\": \"gelu_new\", \"none\": null, "
             "\"list\": [1, {\"n_layer\": 3}], \"minus\": -7, \"large\": 123456789012345678901, \"half\": 0.5 }");
    trek_config *c = trek_config_read(in_folder("config.json"));
    int64_t integer = 5;
    double number = 0;
    bool flag = false;
    const char *text = NULL;
    assert_non_null(c);
    assert_int_equal(trek_config_integer(c, "n_layer", &integer), TREK_OK);
    assert_int_equal(integer, 12);
    assert_int_equal(trek_config_integer(c, "minus", &integer), TREK_OK);
    assert_int_equal(integer, -7);
    assert_int_equal(trek_config_number(c, "eps", &number), TREK_OK);
    assert_true(number == 1e-5);
    assert_int_equal(trek_config_number(c, "n_layer", &number), TREK_OK);
    assert_true(number == 12);
    assert_int_equal(trek_config_number(c, "large", &number), TREK_OK);
    assert_true(number == 123456789012345678901.0);
    assert_int_equal(trek_config_bool(c, "tie", &flag), TREK_OK);
    assert_true(flag);
    assert_int_equal(trek_config_string(c, "act", &text), TREK_OK);
    assert_string_equal(text, "gelu_new");
    assert_true(trek_config_has(c, "list") && trek_config_has(c, "none") && !trek_config_has(c, "more") &&
                !trek_config_has(NULL, "x"));
    integer = 5;
    static const char *const none[] = { "half", "large", "act", "none", "list", "tie" };
    for (int k = 0; k < 6; k++) {
        FAILS(trek_config_integer(c, none[k], &integer), TREK_ERR_ARGUMENT, "must be an integer");
    }
    assert_int_equal(integer, 5);
    FAILS(trek_config_string(c, "more", &text), TREK_ERR_ARGUMENT, "config.json: \"more\": it does not exist");
    FAILS(trek_config_bool(c, "n_layer", &flag), TREK_ERR_ARGUMENT, "must be true or false");
    FAILS(trek_config_number(NULL, "x", &number), TREK_ERR_ARGUMENT, "configuration");
    trek_config_free(&c);
    trek_config_free(&c);
    static const char *const bad[] = { "", "[]", "{\"a\":1", "{\"a\":1}x", "{\"a\":1,\"a\":2}", "{\"a\":+1}", "{\"a\":.5}",
                                       "{\"a\":1.}",
                                       "{\"a\":1e}", "{\"a\":nul}", "{a:1}", "{\"a\":[1,]}", "{\"a\":{\"b\"}}", "{\"a\":01}" };
    for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) {
        put_text("config.json", bad[k]);
        if (trek_config_read(in_folder("config.json")))
            fail_msg("%s is read", bad[k]);
        expect_error(TREK_ERR_FORMAT, "config.json");
    }
    REFUSED(trek_config_read(in_folder("gone.json")), TREK_ERR_IO, "gone.json");
    REFUSED(trek_config_read(NULL), TREK_ERR_ARGUMENT, "path");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_shards, teardown),     cmocka_unit_test_teardown(test_bad_indexes, teardown),
        cmocka_unit_test_teardown(test_lazy, teardown),       cmocka_unit_test_teardown(test_lazy_cut, teardown),
        cmocka_unit_test_teardown(test_map, teardown),        cmocka_unit_test_teardown(test_assign, teardown),
        cmocka_unit_test_teardown(test_assign_shared, teardown), cmocka_unit_test_teardown(test_skip, teardown),
        cmocka_unit_test_teardown(test_patterns, teardown),   cmocka_unit_test_teardown(test_rules, teardown),
        cmocka_unit_test_teardown(test_bad_rules, teardown),  cmocka_unit_test_teardown(test_module_rules, teardown),
        cmocka_unit_test_teardown(test_skipped, teardown),    cmocka_unit_test_teardown(test_config, teardown),
    };
    snprintf(folder, sizeof folder, "/tmp/trek-files-%d", (int)getpid());
    if (mkdir(folder, 0777) != 0)
        return 1;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    rmdir(folder);
    return failed;
}
