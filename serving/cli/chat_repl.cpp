#include "serving/cli/chat_repl.h"

#include <fmt/format.h>
#include <unistd.h>

#include <string_view>

#include "core/base/error.h"
#include "serving/cli/answer_printer.h"
#include "serving/cli/output.h"

namespace moesaic {
namespace {

constexpr std::string_view kHelp =
    "  /clear          forget the conversation\n"
    "  /system TEXT    set the system message (and forget the conversation)\n"
    "  /stats          show after each answer what it took, or stop showing it\n"
    "  /quit           leave (or Ctrl-D)\n"
    "  \"\"\"             begin or end a message of several lines\n"
    "  Ctrl-C          stop the answer\n";

Json Message(const char* role, const std::string& content) {
  return {{"role", role}, {"content", content}};
}

class Chat {
 public:
  Chat(const RequestRunner& runner, const ChatOptions& options, InterruptFlag& interrupt,
       const std::function<void(const RunResult&)>& show_stats)
      : runner_(runner), options_(options), interrupt_(interrupt), show_stats_(show_stats) {
    Forget();
  }

  void Run() {
    if (IsTerminal(STDIN_FILENO)) {
      Print("{}/help lists the commands, Ctrl-D leaves.{}\n", style_.dim, style_.reset);
    }
    if (!options_.first_message.empty()) Answer(options_.first_message);
    std::string message;
    while (ReadMessage(&message)) {
      if (message.empty()) continue;
      if (message[0] == '/') {
        if (!Command(message)) return;
      } else {
        Answer(message);
      }
    }
    if (IsTerminal(STDIN_FILENO)) WriteOut("\n");
  }

 private:
  void Forget() {
    messages_ = Json::array();
    if (!options_.system.empty()) messages_.push_back(Message("system", options_.system));
  }

  void Prompt(std::string_view text) {
    if (IsTerminal(STDIN_FILENO)) Print("{}{}{}", style_.bold, text, style_.reset);
  }

  // False at the end of the input.
  bool ReadMessage(std::string* message) {
    constexpr std::string_view kFence = "\"\"\"";
    Prompt(">>> ");
    message->clear();
    std::string line;
    bool fenced = false;
    for (;;) {
      const ReadLineResult read = ReadLine(&line);
      if (read == ReadLineResult::kInterrupted) {
        interrupt_.Clear();
        WriteOut("\nCtrl-D or /quit leaves.\n");
        message->clear();
        return true;
      }
      if (read == ReadLineResult::kEnd) return fenced && !message->empty();
      const size_t fence = line.find(kFence);
      if (!fenced) {
        if (fence != 0) {
          *message = line;
          return true;
        }
        fenced = true;
        line.erase(0, kFence.size());
        const size_t end = line.find(kFence);
        *message = line.substr(0, end);
        if (end != std::string::npos) return true;
        if (!message->empty()) *message += '\n';
      } else {
        *message += line.substr(0, fence);
        if (fence != std::string::npos) return true;
        *message += '\n';
      }
      Prompt("... ");
    }
  }

  // False when the user leaves.
  bool Command(const std::string& line) {
    const std::string_view word = std::string_view(line).substr(0, line.find(' '));
    if (word == "/quit" || word == "/exit" || word == "/bye") return false;
    if (word == "/clear") {
      Forget();
    } else if (word == "/stats") {
      options_.stats = !options_.stats;
    } else if (word == "/system") {
      options_.system = line.size() > word.size() ? line.substr(word.size() + 1) : "";
      Forget();
    } else if (word == "/help" || word == "/?") {
      WriteOut(kHelp);
    } else {
      Print("There is no {}; these are the commands:\n{}", word, kHelp);
    }
    return true;
  }

  void Answer(const std::string& message) {
    try {
      Json asked = messages_;
      asked.push_back(Message("user", message));
      interrupt_.Clear();
      const RunPrompt prompt =
          options_.raw ? runner_.EncodeRaw(message) : runner_.EncodeMessages(asked);
      if (options_.raw) Print("{}{}{}", style_.dim, message, style_.reset);
      AnswerPrinter shown;
      const RunResult result = runner_.Run(
          prompt, [&](std::string_view text, bool reasoning) { shown.Write(text, reasoning); },
          [this] { return interrupt_.raised(); });
      interrupt_.Clear();
      shown.End();
      if (!options_.raw) {
        messages_ = std::move(asked);
        messages_.push_back(Message("assistant", result.text));
        // The template decides what becomes of it.
        if (!result.reasoning.empty()) messages_.back()["reasoning"] = result.reasoning;
      }
      if (options_.stats) show_stats_(result);
    } catch (const Error& error) {
      // A conversation that has grown too long is no reason to end the session.
      const Style err = StyleFor(STDERR_FILENO);
      fmt::print(stderr, "{}{}error:{} {}\n", err.bold, err.red, err.reset, error.what());
      if (!options_.raw) fmt::print(stderr, "/clear forgets the conversation.\n");
    }
  }

  const RequestRunner& runner_;
  ChatOptions options_;
  InterruptFlag& interrupt_;
  const std::function<void(const RunResult&)>& show_stats_;
  const Style style_ = StyleFor(STDOUT_FILENO);
  Json messages_;
};

}  // namespace

void RunChat(const RequestRunner& runner, const ChatOptions& options, InterruptFlag& interrupt,
             const std::function<void(const RunResult&)>& show_stats) {
  Chat(runner, options, interrupt, show_stats).Run();
}

}  // namespace moesaic
