/* SPDX-License-Identifier: Apache-2.0 */
/* A build tool: embed OUTPUT FILE... writes C source with the bytes of each file, named after it with '_' for '.'. */
#include <stdio.h>
#include <string.h>

static int put(FILE *out, const char *path)
{
    const char *name = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
    FILE *in = fopen(path, "rb");
    long count = 0;
    if (!in)
        return 1;
    fprintf(out, "const unsigned char trek_page_");
    for (const char *c = name; *c; c++)
        fputc(*c == '.' ? '_' : *c, out);
    fprintf(out, "[] = {");
    for (int byte; (byte = fgetc(in)) != EOF; count++)
        fprintf(out, "%s%d,", count % 32 ? "" : "\n", byte);
    fprintf(out, "\n};\nconst size_t trek_page_");
    for (const char *c = name; *c; c++)
        fputc(*c == '.' ? '_' : *c, out);
    fprintf(out, "_size = %ld;\n", count);
    return fclose(in) != 0 || count == 0;
}

int main(int argc, char **argv)
{
    FILE *out = argc > 2 ? fopen(argv[1], "w") : NULL;
    int failed = !out;
    if (out)
        fprintf(out, "#include \"monitor/viewer/page_files.h\"\n\n");
    for (int k = 2; out && k < argc; k++)
        failed |= put(out, argv[k]);
    return (out && fclose(out) != 0) || failed;
}
