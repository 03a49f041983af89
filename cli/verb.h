// SPDX-License-Identifier: Apache-2.0
// A verb's options without CLI11's headers: they cost a compiler many seconds in every file that
// includes them.
#ifndef HOLDFAST_CLI_VERB_H_
#define HOLDFAST_CLI_VERB_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace holdfast::cli {

// The values live until the command line has been parsed and the verb has run: they are held by
// Then's function. An empty `help` hides an option.
class Verb {
 public:
  explicit Verb(CLI::App* app) : app_(app) {}

  void Positional(const std::string& name, std::string* value,
                  const std::string& help);  // required
  void Option(const std::string& names, std::string* value, const std::string& help);
  void Required(const std::string& names, std::string* value, const std::string& help);
  void Option(const std::string& names, int* value, const std::string& help);
  void Option(const std::string& names, uint64_t* value, const std::string& help);
  void PositiveOption(const std::string& names, uint64_t* value, const std::string& help);
  void NonNegativeOption(const std::string& names, int64_t* value, const std::string& help);
  // Can be given several times.
  void Option(const std::string& names, std::vector<std::string>* value, const std::string& help);
  void Option(const std::string& names, std::vector<uint32_t>* value, const std::string& help);
  void Flag(const std::string& names, bool* value, const std::string& help);
  void Flag(const std::string& names, std::function<void()> given, const std::string& help);
  // Called when the command line is right.
  void Then(std::function<void()> parsed);

 private:
  CLI::App* app_;
};

}  // namespace holdfast::cli

#endif  // HOLDFAST_CLI_VERB_H_
