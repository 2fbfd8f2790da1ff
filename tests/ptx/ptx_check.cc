/* SPDX-License-Identifier: Apache-2.0 */
/* ptx_check FILE...: translates every kernel of these files, which fails where an instruction is not known. */
#include <cstdio>
#include <fstream>
#include <sstream>

#include "ptx_program.h"

int main(int argc, char **argv)
{
    int failed = 0;
    size_t kernels = 0, instructions = 0;
    for (int k = 1; k < argc; k++) {
        std::ifstream file(argv[k]);
        std::stringstream text;
        text << file.rdbuf();
        ptx::Module module(argv[k], text.str());
        for (const std::string &entry : module.entries()) {
            try {
                instructions += module.program(entry).code.size();
                kernels++;
            } catch (const ptx::Fault &fault) {
                printf("%s\n", fault.what());
                failed++;
            }
        }
        if (text.str().find(".version ") == std::string::npos) { /* a file without kernels has that too */
            printf("%s: no PTX\n", argv[k]);
            failed++;
        }
    }
    printf("%zu kernels, %zu instructions, %d failed\n", kernels, instructions, failed);
    return failed || !kernels;
}
