"""langgraph with the model of langchain-openai: a graph of a model and its tools."""

import json
import sys

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition


@tool
def multiply(a: int, b: int) -> int:
    """Multiply two whole numbers."""
    return a * b


task = json.load(sys.stdin)
model = ChatOpenAI(model="gpt-4o", use_responses_api=task["responses"]).bind_tools([multiply])


def call_model(state: MessagesState):
    return {"messages": [model.invoke(state["messages"])]}


builder = StateGraph(MessagesState)
builder.add_node("model", call_model)
builder.add_node("tools", ToolNode([multiply]))
builder.add_edge(START, "model")
builder.add_conditional_edges("model", tools_condition)
builder.add_edge("tools", "model")
graph = builder.compile()
asked = {"messages": [("user", task["question"])]}
if task["streamed"]:
    # With a stream of messages, langchain streams every call of the model.
    *_, state = (state for mode, state in graph.stream(asked, stream_mode=["messages", "values"]) if mode == "values")
else:
    state = graph.invoke(asked)
json.dump({"answer": state["messages"][-1].text}, sys.stdout)
