/* SPDX-License-Identifier: Apache-2.0 */
/* GPT-2 and its tokenizer, for check_transformers.py.
 *   gpt2_tool logits FOLDER IN OUT        the logits of the tokens "ids" [N, T] of a state file, to a state file; also with the
 * files mapped gpt2_tool save FOLDER TO BYTES        the model of a folder to another, in files of so many bytes gpt2_tool tokens
 * TOKENIZER IN OUT     IN: texts, each after its length (u32); OUT: for each its number of tokens and those (u32) gpt2_tool time
 * TOKENIZER IN           MB/s over the file gpt2_tool load FILE                   ms until a model of GPT-2's smallest size is
 * there with the file's values (made at need) */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "data/tokenizer.h"
#include "nn/init.h"
#include "tests/support/gpt2.h"
#include "trek.h"

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static trek_module *load(const char *folder, bool map)
{
    gpt2_config config = { 0 };
    if (gpt2_config_read(folder, &config) != TREK_OK)
        return NULL;
    trek_init_skip_begin();
    trek_module *m = gpt2_new(&config);
    trek_init_skip_end();
    trek_state_load_opts opts = { .rules = gpt2_rules, .n_rules = GPT2_RULES, .map = map, .assign = map };
    if (m && trek_state_load_with(m, folder, &opts, NULL) != TREK_OK)
        trek_module_free(&m);
    return m;
}

static trek_tensor *run(trek_module *m, trek_tensor *ids)
{
    trek_scope scope = trek_scope_begin();
    trek_var *y = trek_forward(m, trek_var_constant(ids));
    trek_tensor *logits = y ? trek_tensor_clone(trek_var_data(y)) : NULL;
    trek_scope_end(scope);
    return logits;
}

static int logits(const char *folder, const char *in, const char *out)
{
    trek_state *read = trek_state_read(in), *write = trek_state_new();
    trek_tensor *ids = read ? trek_state_find(read, "ids") : NULL;
    for (int map = 0; map < 2 && ids; map++) {
        trek_module *m = load(folder, map);
        trek_tensor *y = m ? run(m, ids) : NULL;
        if (y)
            trek_state_add(write, map ? "mapped" : "logits", y);
        trek_tensor_release(y);
        trek_module_free(&m);
    }
    if (ids && trek_state_count(write) == 2)
        trek_state_write(write, out);
    trek_state_free(&read);
    trek_state_free(&write);
    return trek_error_status() != TREK_OK;
}

static int save(const char *folder, const char *to, const char *bytes)
{
    trek_module *m = load(folder, true);
    trek_state_save_opts opts = { .max_shard_bytes = strtoull(bytes, NULL, 10), .rules = gpt2_rules, .n_rules = GPT2_RULES };
    if (m)
        trek_state_save_with(m, to, &opts);
    trek_module_free(&m);
    return trek_error_status() != TREK_OK;
}

static char *read_all(const char *path, size_t *size)
{
    FILE *file = fopen(path, "rb");
    char *data = NULL;
    if (file && fseek(file, 0, SEEK_END) == 0) {
        *size = (size_t)ftell(file);
        rewind(file);
        data = malloc(*size + 1);
        if (data && fread(data, 1, *size, file) != *size) {
            free(data);
            data = NULL;
        }
    }
    if (file)
        fclose(file);
    return data;
}

static int one_text(const trek_tokenizer *t, const char *text, size_t bytes, FILE *out)
{
    size_t back = 0;
    trek_tensor *ids = trek_tokenizer_encode(t, text, bytes, NULL);
    int64_t n = ids ? trek_tensor_numel(ids) : 0;
    char *again = ids ? trek_tokenizer_decode(t, trek_tensor_data(ids), n, false, &back) : NULL;
    int wrong = !again || back != bytes || memcmp(again, text, bytes) != 0;
    fwrite(&(uint32_t){ (uint32_t)n }, 4, 1, out);
    for (int64_t k = 0; k < n; k++)
        fwrite(&(uint32_t){ (uint32_t)((int64_t *)trek_tensor_data(ids))[k] }, 4, 1, out);
    trek_string_free(&again);
    trek_tensor_release(ids);
    return wrong;
}

static int tokens(const char *path, const char *in, const char *out)
{
    size_t size = 0;
    uint32_t bytes;
    char *data = read_all(in, &size);
    trek_tokenizer *t = trek_tokenizer_read(path);
    FILE *file = fopen(out, "wb");
    int wrong = !data || !t || !file;
    for (size_t at = 0; !wrong && at + 4 <= size; at += 4 + bytes) {
        memcpy(&bytes, data + at, 4);
        wrong = one_text(t, data + at + 4, bytes, file);
    }
    if (file)
        fclose(file);
    trek_tokenizer_free(&t);
    free(data);
    return wrong;
}

static int speed(const char *path, const char *in)
{
    size_t size = 0;
    char *data = read_all(in, &size);
    trek_tokenizer *t = trek_tokenizer_read(path);
    int64_t *ids = data ? malloc(size * sizeof *ids) : NULL, n = 0;
    double best = 1e9;
    for (int k = 0; t && ids && k < 5; k++) {
        double from = now();
        n = trek_tokenizer_encode_to(t, data, size, NULL, ids, (int64_t)size);
        best = now() - from < best ? now() - from : best;
    }
    printf("%.1f MB/s, %lld tokens\n", (double)size / best / 1e6, (long long)n);
    trek_tokenizer_free(&t);
    free(ids);
    free(data);
    return n <= 0;
}

static int load_time(const char *path)
{
    gpt2_config config = { 50257, 1024, 768, 12, 12 };
    if (access(path, R_OK) != 0) {
        trek_module *m = gpt2_new(&config);
        trek_state_save(m, path);
        trek_module_free(&m);
    }
    for (int way = 0; way < 6; way++) {
        double from = now();
        trek_state_load_opts opts = { .map = way % 2, .assign = true };
        trek_init_skip_begin();
        trek_module *m = gpt2_new(&config);
        trek_init_skip_end();
        trek_state_report report = { 0 };
        trek_state_load_with(m, path, &opts, &report);
        double loaded = now();
        trek_tensor *ids = trek_tensor_from_data((int64_t[]){ 464, 3290 }, trek_dims(1, 2), TREK_I64, trek_cpu(0));
        trek_tensor *y = run(m, ids);
        printf("%s: %.1f ms, %d of %d assigned; first forward %.1f ms more\n", way % 2 ? "mapped" : "read", 1e3 * (loaded - from),
               report.assigned,
               report.loaded, 1e3 * (now() - loaded));
        trek_tensor_release(y);
        trek_tensor_release(ids);
        trek_module_free(&m);
    }
    return trek_error_status() != TREK_OK;
}

int main(int argc, char **argv)
{
    int wrong = 2;
    if (argc == 5 && !strcmp(argv[1], "logits"))
        wrong = logits(argv[2], argv[3], argv[4]);
    else if (argc == 5 && !strcmp(argv[1], "save"))
        wrong = save(argv[2], argv[3], argv[4]);
    else if (argc == 5 && !strcmp(argv[1], "tokens"))
        wrong = tokens(argv[2], argv[3], argv[4]);
    else if (argc == 4 && !strcmp(argv[1], "time"))
        wrong = speed(argv[2], argv[3]);
    else if (argc == 3 && !strcmp(argv[1], "load"))
        wrong = load_time(argv[2]);
    if (wrong)
        fprintf(stderr, "%s\n", trek_error());
    return wrong;
}
