// SPDX-License-Identifier: Apache-2.0
// The whole command line: argv in, exit code out.
#ifndef HOLDFAST_CLI_APP_H_
#define HOLDFAST_CLI_APP_H_

namespace holdfast::cli {

int RunApp(int argc, char** argv);

}  // namespace holdfast::cli

#endif  // HOLDFAST_CLI_APP_H_
