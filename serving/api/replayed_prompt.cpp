#include "serving/api/replayed_prompt.h"

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>

#include "serving/api/answer_parsing.h"
#include "serving/api/prompt_builder.h"
#include "serving/api/replay_store.h"
#include "serving/text/tokenizer.h"

namespace moesaic {
namespace {

// "" when there is none.
std::string FirstCallId(const Json& message) {
  const auto calls = message.find("tool_calls");
  if (message.value("role", "") != "assistant" || calls == message.end() || !calls->is_array() ||
      calls->empty()) {
    return {};
  }
  const auto id = calls->front().find("id");
  return id != calls->front().end() && id->is_string() ? id->get<std::string>() : std::string();
}

// Where the template itself (not the client) has written `text`, from `begin` on; npos: nowhere.
size_t FindOwn(const jinja::MarkedText& prompt, std::string_view text, size_t begin) {
  const std::string_view bytes = prompt.bytes();
  for (size_t at = bytes.find(text, begin); at != bytes.npos; at = bytes.find(text, at + 1)) {
    if (!prompt.FromInput(at)) return at;
  }
  return std::string_view::npos;
}

bool SameArguments(const std::string& a, const std::string& b) {
  if (a == b) return true;
  const Json x = Json::parse(a, nullptr, false);
  return !x.is_discarded() && x == Json::parse(b, nullptr, false);
}

// But for the ids, which a turn's text may not have.
bool SameMeaning(const std::vector<AnswerItem>& a, const std::vector<AnswerItem>& b) {
  return std::equal(
      a.begin(), a.end(), b.begin(), b.end(), [](const AnswerItem& x, const AnswerItem& y) {
        if (x.kind != y.kind || x.name != y.name) return false;
        return x.kind == AnswerItem::Kind::kCall ? SameArguments(x.text, y.text) : x.text == y.text;
      });
}

// What bytes [begin, end) of the prompt mean, read as an answer behind what is before them.
std::vector<AnswerItem> MeaningOf(const ServedModel& model, const ChatInput& chat,
                                  const jinja::MarkedText& prompt, size_t begin, size_t end) {
  const auto parsing = ParsingOf(model, chat, prompt.Slice(0, begin));
  OutputDelta turn;
  turn.text = prompt.bytes().substr(begin, end - begin);
  turn.finish = FinishReason::kStop;
  if (parsing != nullptr) {
    for (const std::string_view marker : parsing->parser.control_markers) {
      for (size_t at = FindOwn(prompt, marker, begin); at < end;
           at = FindOwn(prompt, marker, at + 1)) {
        turn.special_offsets.push_back(at - begin);
      }
    }
    std::sort(turn.special_offsets.begin(), turn.special_offsets.end());
  }
  ChatAnswer answer(parsing);
  answer.Add(turn);
  return answer.items();
}

struct TurnPlace {
  size_t begin = 0;
  size_t end = 0;  // behind the token that ends the turn
};

// Where the turn stands in the prompt; nullopt: it does not, or says something else there.
std::optional<TurnPlace> FindTurn(const ServedModel& model, const ChatInput& chat,
                                  const jinja::MarkedText& prompt, const GeneratedTurn& turn) {
  const std::string_view bytes = prompt.bytes();
  const size_t begin = turn.prompt.bytes;
  if (begin > bytes.size() || PromptKeyOf(bytes.substr(0, begin)) != turn.prompt) {
    return std::nullopt;
  }
  const std::string_view ending = model.engine->tokenizer().TokenBytes(turn.tokens.back());
  const size_t end = FindOwn(prompt, ending, begin);
  if (ending.empty() || end == std::string_view::npos) return std::nullopt;
  if (!SameMeaning(MeaningOf(model, chat, prompt, begin, end), turn.items)) return std::nullopt;
  return TurnPlace{begin, end + ending.size()};
}

}  // namespace

std::vector<int32_t> EncodeReplayed(const ServedModel& model, const ChatInput& chat,
                                    const jinja::MarkedText& prompt, bool add_special_tokens) {
  const Tokenizer& tokenizer = model.engine->tokenizer();
  std::vector<int32_t> tokens;
  size_t done = 0;
  const auto encode_to = [&](size_t end) {
    const std::vector<int32_t> more =
        EncodeMarked(tokenizer, prompt.Slice(done, end), add_special_tokens && done == 0);
    tokens.insert(tokens.end(), more.begin(), more.end());
    done = end;
  };
  if (model.replay != nullptr) {
    for (const Json& message : chat.messages) {
      const std::string id = FirstCallId(message);
      const auto turn = id.empty() ? nullptr : model.replay->Find(id);
      if (turn == nullptr || turn->prompt.bytes < done) continue;
      const std::optional<TurnPlace> place = FindTurn(model, chat, prompt, *turn);
      if (!place) continue;
      encode_to(place->begin);
      tokens.insert(tokens.end(), turn->tokens.begin(), turn->tokens.end());
      done = place->end;
    }
  }
  encode_to(prompt.bytes().size());
  return tokens;
}

}  // namespace moesaic
