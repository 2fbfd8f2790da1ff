/* SPDX-License-Identifier: Apache-2.0 */
/* A small inference server: several threads answer HTTP requests with one model, LeNet as mnist.c saves it.
 *
 *   serve [--model FILE] [--port N] [--threads N]
 *   curl http://127.0.0.1:8080/health
 *   curl -d '{"images": [[0, 0.5, ...]]}' http://127.0.0.1:8080/predict
 *
 * POST /predict: {"images": [[784 numbers in 0 .. 1, row by row], ...]}, 64 images at most, gives {"digits": [7, ...],
 * "probabilities": [[of 0, ... of 9], ...]}. What is not understood gets status 400 and {"error": "..."}. It listens on
 * this machine alone, prints its port, and ends in good order by Ctrl-C or SIGTERM: what was begun is answered. */
#define _POSIX_C_SOURCE 200809L /* NOLINT(bugprone-reserved-identifier): it is for this */
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <unistd.h>

#include "http.h"
#include "training.h"

enum { PIXELS = 28 * 28, CLASSES = 10, MOST_IMAGES = 64, MOST_THREADS = 64, MOST_ANSWER = 64 << 10 };

typedef struct server {
    trek_graph *model;
    int listener, stop;            /* `stop` can be read from when it is to end */
} server;

static trek_graph *build_model(trek_device device)
{
    trek_flow *flow = trek_flow_from(trek_nn_conv2d(1, 6, 5, device));
    trek_flow_through(flow, trek_nn_relu());
    trek_flow_through(flow, trek_nn_max_pool2d(2));
    trek_flow_through(flow, trek_nn_conv2d(6, 16, 5, device));
    trek_flow_through(flow, trek_nn_relu());
    trek_flow_through(flow, trek_nn_max_pool2d(2));
    trek_flow_through(flow, trek_nn_flatten());
    trek_flow_through(flow, trek_nn_linear(256, 120, device));
    trek_flow_through(flow, trek_nn_relu());
    trek_flow_through(flow, trek_nn_linear(120, 84, device));
    trek_flow_through(flow, trek_nn_relu());
    trek_flow_through(flow, trek_nn_linear(84, CLASSES, device));
    return trek_flow_build(flow);
}

/* --- JSON ---------------------------------------------------------------------------------- */

/* Past white space: whether `c` comes next, which is then passed, too. */
static bool next_is(const char **at, char c)
{
    *at += strspn(*at, " \t\r\n");
    return **at == c ? (*at)++, true : false;
}

/* A JSON number in 0 .. 1. strtod alone would take "nan", "0x1" and the locale's comma. */
static bool read_pixel(const char **at, float *pixel)
{
    *at += strspn(*at, " \t\r\n");
    size_t length = strspn(*at, "0123456789.eE+-");
    char text[32], *end;
    if (length == 0 || length >= sizeof text || !isdigit((unsigned char)**at))
        return false;
    memcpy(text, *at, length);
    text[length] = '\0';
    double value = strtod(text, &end);
    if (*end != '\0' || !(value >= 0 && value <= 1))
        return false;
    *pixel = (float)value;
    *at += length;
    return true;
}

/* {"images": [[...], ...]} and nothing else. The number of images; 0 and what is wrong. */
static int read_images(const char *json, float *pixels, const char **wrong)
{
    const char *at = json, key[] = "\"images\"";
    *wrong = "the body is an object of a list of images";
    if (!next_is(&at, '{') || (at += strspn(at, " \t\r\n"), strncmp(at, key, sizeof key - 1) != 0))
        return 0;
    at += sizeof key - 1;
    if (!next_is(&at, ':') || !next_is(&at, '['))
        return 0;
    int n = 0;
    do {
        *wrong = n == MOST_IMAGES ? "at most 64 images at once" : "an image is a list of 784 numbers from 0 to 1";
        if (n == MOST_IMAGES || !next_is(&at, '['))
            return 0;
        for (int k = 0; k < PIXELS; k++)
            if ((k > 0 && !next_is(&at, ',')) || !read_pixel(&at, &pixels[n * PIXELS + k]))
                return 0;
        if (!next_is(&at, ']'))
            return 0;
        n++;
    } while (next_is(&at, ','));
    *wrong = "nothing comes behind the list of images";
    return next_is(&at, ']') && next_is(&at, '}') && at[strspn(at, " \t\r\n")] == '\0' ? n : 0;
}

static void add(char *answer, size_t *length, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    int n = vsnprintf(answer + *length, MOST_ANSWER - *length, format, list); /* 64 images take 10 KB */
    va_end(list);
    *length += n > 0 && (size_t)n < MOST_ANSWER - *length ? (size_t)n : 0;
}

/* --- answers --------------------------------------------------------------------------------- */

/* Runs the model, which all threads share; a forward without gradients writes nothing to it. */
static bool predict(trek_graph *model, const float *pixels, int n, float (*chances)[CLASSES])
{
    trek_scope scope = trek_scope_begin();
    trek_var *x = trek_var_from(trek_tensor_from_data(pixels, trek_dims(n, 1, 28, 28), TREK_F32, trek_device_default()));
    trek_no_grad_begin();
    trek_var *y = trek_softmax(trek_graph_infer(model, &x, 1, NULL, NULL, 0), 1);
    trek_no_grad_end();
    bool good = y && trek_tensor_to_host(trek_var_data(y), TREK_F32, chances, (size_t)n * sizeof *chances) == TREK_OK;
    trek_scope_end(scope);
    return good;
}

static int answer_predict(trek_graph *model, const char *body, char *answer)
{
    static _Thread_local float pixels[MOST_IMAGES * PIXELS], chances[MOST_IMAGES][CLASSES];
    const char *wrong;
    size_t length = 0;
    int n = read_images(body, pixels, &wrong);
    if (n == 0) {
        snprintf(answer, MOST_ANSWER, "{\"error\": \"%s\"}\n", wrong);
        return 400;
    }
    if (!predict(model, pixels, n, chances)) {
        fprintf(stderr, "%s\n", trek_error());
        trek_error_clear(); /* the next request begins again */
        snprintf(answer, MOST_ANSWER, "{\"error\": \"the model failed\"}\n");
        return 500;
    }
    for (int i = 0; i < n; i++) {
        int best = 0;
        for (int c = 1; c < CLASSES; c++)
            best = chances[i][c] > chances[i][best] ? c : best;
        add(answer, &length, "%s%d", i ? ", " : "{\"digits\": [", best);
    }
    for (int i = 0; i < n; i++)
        for (int c = 0; c < CLASSES; c++)
            add(answer, &length, "%s%.6f", c ? ", " : i ? "], [" : "], \"probabilities\": [[", (double)chances[i][c]);
    add(answer, &length, "]]}\n");
    return 200;
}

static void serve_one(server *s, int socket, http_request *request, char *answer)
{
    int status = http_read(socket, request);
    snprintf(answer, MOST_ANSWER, "{\"error\": \"%s\"}\n",
             status == 413 ? "the body is too long" : "no request that is understood");
    if (status == 0)
        return;
    if (status == 200 && strcmp(request->path, "/health") == 0) {
        snprintf(answer, MOST_ANSWER, "{\"status\": \"ok\"}\n");
    } else if (status == 200 && strcmp(request->path, "/predict") != 0) {
        status = 404;
        snprintf(answer, MOST_ANSWER, "{\"error\": \"there are /health and /predict\"}\n");
    } else if (status == 200 && strcmp(request->method, "POST") != 0) {
        status = 405;
        snprintf(answer, MOST_ANSWER, "{\"error\": \"/predict takes POST\"}\n");
    } else if (status == 200) {
        if (strlen(request->body) < request->length)
            request->body[0] = '\0'; /* a 0 among the bytes: no JSON */
        status = answer_predict(s->model, request->body, answer);
    }
    http_answer(socket, status, answer);
}

static void *worker(void *arg)
{
    server *s = arg;
    http_request *request = malloc(sizeof *request);
    char *answer = malloc(MOST_ANSWER);
    struct pollfd waiting[] = { { .fd = s->listener, .events = POLLIN }, { .fd = s->stop, .events = POLLIN } };
    while (request && answer && poll(waiting, 2, -1) >= 0 && !waiting[1].revents) {
        int socket = accept(s->listener, NULL, NULL); /* non-blocking: another thread may have been quicker */
        if (socket < 0)
            continue;
        serve_one(s, socket, request, answer);
        http_end(socket);
    }
    free(request);
    free(answer);
    return NULL;
}

/* --- the program -------------------------------------------------------------------------------- */

static int listen_on(int port)
{
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port),
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t size = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0), yes = 1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    struct sockaddr *any = (struct sockaddr *)&address;
    if (listener < 0 || bind(listener, any, size) || listen(listener, 128) || getsockname(listener, any, &size) ||
        fcntl(listener, F_SETFL, O_NONBLOCK)) {
        trek_fail(TREK_ERR_IO, "port %d: %s", port, strerror(errno));
        return -1;
    }
    printf("http://127.0.0.1:%d\n", ntohs(address.sin_port));
    fflush(stdout);
    return listener;
}

int main(int argc, char **argv)
{
    const char *file = "mnist.safetensors";
    int port = 8080, threads = 4, started = 0, number, stop[2];
    const argument list[] = {
        { "--model", "FILE", "what mnist.c saved", .text = &file },
        { "--port", "N", "0: one that is free", .whole = &port, .least = 0, .most = 65535 },
        { "--threads", "N", "that answer", .whole = &threads, .least = 1, .most = MOST_THREADS },
    };
    arguments_read(argc, argv, "Answers HTTP requests with a model of digits.", list, 3);
    server s = { .model = build_model(trek_device_default()) };
    pthread_t workers[MOST_THREADS];
    sigset_t ends;
    sigemptyset(&ends);
    sigaddset(&ends, SIGINT);
    sigaddset(&ends, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &ends, NULL); /* of all threads: sigwait below takes them */
    trek_state_load(trek_graph_module(s.model), file, NULL);
    trek_graph_train(s.model, false);
    if (trek_error_status() == TREK_OK && pipe(stop) == 0 && (s.listener = listen_on(port)) >= 0) {
        s.stop = stop[0];
        while (started < threads && pthread_create(&workers[started], NULL, worker, &s) == 0)
            started++;
        sigwait(&ends, &number);
        close(stop[1]); /* the other end can be read from now: end of file */
        for (int k = 0; k < started; k++)
            pthread_join(workers[k], NULL);
        close(stop[0]);
        close(s.listener);
        printf("stopped\n");
    }
    trek_graph_free(&s.model);
    return training_end();
}
