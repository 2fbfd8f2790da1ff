/* SPDX-License-Identifier: Apache-2.0 */
/* Generates with a GPT of random weights and a cache, and prints how fast, for generate.py:
 *
 *     trek-bench-generate [layers width heads vocabulary rows prompt tokens threads turns]
 *
 * by default GPT-2 124M, a prompt of 16 tokens and 128 new ones, 1 thread that calls. Each of the threads that call has a text of
 * its own, of the one model. A line "tokens_per_s TOTAL first_ms FIRST" for each turn; the first token's time is the prompt's. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "bench.h"

typedef struct caller {
    trek_module *model;
    int64_t rows, prompt, tokens, vocabulary, begin, first; /* first: when the first token came */
    bool fine;
} caller;

static bool hear(int64_t row, int64_t token, void *arg)
{
    caller *c = arg;
    (void)token;
    if (row == 0 && c->first == 0)
        c->first = bench_now_ns();
    return true;
}

static void *write_text(void *arg)
{
    caller *c = arg;
    int64_t *prompt = malloc((size_t)c->prompt * sizeof *prompt), *lengths = malloc((size_t)c->rows * sizeof *lengths);
    int64_t *tokens = malloc((size_t)(c->rows * c->tokens) * sizeof *tokens), *counts = malloc((size_t)c->rows * sizeof *counts);
    const int64_t **prompts = malloc((size_t)c->rows * sizeof *prompts);
    bool made = prompt && lengths && tokens && counts && prompts;
    for (int64_t k = 0; made && k < c->prompt; k++)
        prompt[k] = bench_hash(1, (uint32_t)k) % (uint32_t)c->vocabulary;
    for (int64_t r = 0; made && r < c->rows; r++)
        prompts[r] = prompt, lengths[r] = c->prompt;
    trek_generate_opts o = { .sample = { .temperature = TREK_ZERO }, .max_new_tokens = c->tokens, .on_token = hear, .arg = c };
    c->begin = bench_now_ns();
    c->fine = made && trek_generate(c->model, prompts, lengths, c->rows, &o, tokens, counts) == TREK_OK;
    free(prompt), free(lengths), free(tokens), free(counts), free(prompts);
    return NULL;
}

static bool turn(caller like, int threads)
{
    caller callers[64];
    pthread_t ids[64];
    int64_t begin = bench_now_ns();
    for (int k = 0; k < threads; k++) {
        callers[k] = like;
        if (k > 0 && pthread_create(&ids[k], NULL, write_text, &callers[k]) != 0)
            return false;
    }
    write_text(&callers[0]);
    bool fine = callers[0].fine;
    for (int k = 1; k < threads; k++) {
        pthread_join(ids[k], NULL);
        fine = fine && callers[k].fine;
    }
    double seconds = (double)(bench_now_ns() - begin) / 1e9;
    printf("tokens_per_s %.2f first_ms %.2f\n", (double)(like.rows * like.tokens * threads) / seconds,
           (double)(callers[0].first - callers[0].begin) / 1e6);
    fflush(stdout);
    return fine;
}

int main(int argc, char **argv)
{
    /* layers width heads vocabulary rows prompt tokens threads turns */
    long numbers[] = { 12, 768, 12, 50257, 1, 16, 128, 1, 3 };
    for (int k = 1; k < argc && k <= 9; k++)
        numbers[k - 1] = strtol(argv[k], NULL, 10);
    int threads = (int)numbers[7];
    if (threads < 1 || threads > 64) {
        fprintf(stderr, "1 to 64 threads, not %d\n", threads);
        return 2;
    }
    caller like = { .rows = numbers[4], .prompt = numbers[5], .tokens = numbers[6], .vocabulary = numbers[3] };
    like.model = bench_gpt_new((int)numbers[0], numbers[1], numbers[2], numbers[5] + numbers[6], numbers[3], trek_cpu(0));
    bool fine = like.model && trek_module_train(like.model, false) == TREK_OK;
    for (long k = 0; k < numbers[8] && fine; k++)
        fine = turn(like, threads);
    if (!fine)
        fprintf(stderr, "%s\n", trek_error());
    trek_module_free(&like.model);
    return fine ? 0 : 1;
}
